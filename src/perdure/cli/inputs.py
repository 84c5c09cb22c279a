"""JSON that the user gives: on the command line, from a file, or from stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from perdure.cli.problems import refuse


def read_json(text: str, name: str) -> bytes:
    """The JSON value that an argument stands for, as UTF-8 text that is known to be one JSON value.

    Args:
        text: the value itself, `@FILE`, or `-` for stdin.
        name: the argument, for the message.

    Raises:
        Problem: it cannot be read, or is not JSON.
    """
    content = read_text(text, name)
    try:
        json.loads(content, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        refuse(f"{name}: not JSON: {error.msg} at {where}", _quoting_hint(text))
    except RecursionError:
        refuse(f"{name}: nested too deeply")
    except ValueError as error:
        refuse(f"{name}: not JSON: {error}")
    return content.encode("utf-8")


def read_text(text: str, name: str) -> str:
    """The text that an argument stands for; see `read_json`.

    Raises:
        Problem: it cannot be read, or is not UTF-8.
    """
    try:
        return _bytes_of(text, name).decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        refuse(f"{name}: not UTF-8 text (byte {error.start})")


def _bytes_of(text: str, name: str) -> bytes:
    if text == "-":
        if sys.stdin.isatty():
            print("reading JSON from the terminal; end with Ctrl-D", file=sys.stderr)
        return sys.stdin.buffer.read()
    if not text.startswith("@"):
        return text.encode("utf-8", "surrogateescape")
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        refuse(f"{name}: {text[1:]!r} cannot be read: {error.strerror}")


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON value")


def _quoting_hint(text: str) -> str:
    if text[:1] in {"-", "@"}:
        return ""
    return 'put it in single quotes for the shell: \'{"key": "text"}\'; or give @FILE, or - for stdin'
