"""Whose code raised: the user's, or ours. A mistake in an application is not a bug of perdure."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def user_line(error: BaseException, *, refused_by_us: bool = False) -> str:
    """`file.py, line 7`: where in the user's code an error came from; empty if it came from elsewhere.

    Frames of the standard library and of installed packages count for whoever called them.

    Args:
        error: with its traceback.
        refused_by_us: frames of perdure count for their caller too, as in a definition that was refused.
    """
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{Path(error.filename).name}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(_OURS):
            if refused_by_us:
                continue
            return ""
        if is_users(frame.filename):
            return f"{Path(frame.filename).name}, line {frame.lineno}"
    return ""


def is_users(filename: str) -> bool:
    """Whether a source file is the user's: neither the language's, nor an installed package's, nor ours."""
    return not filename.startswith(("<", _OURS, *_INSTALLED))
