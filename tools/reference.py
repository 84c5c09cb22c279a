"""Write docs/reference/api.md and cli.md from docstrings and from the command line's own help.

`python -m tools.reference` writes the pages; with `--check` it only compares, and exits with 1 if a page is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import perdure

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Written by `python -m tools.reference`; edit the docstrings instead. -->"
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
ITEM = re.compile(r"^(\*{0,2}[\w.]+(?: ?, ?[\w.]+)*): (.*)$")


def main(arguments: list[str]) -> int:
    """Write or compare the pages; the exit code."""
    pages = {REFERENCE / "api.md": api_page(), REFERENCE / "cli.md": cli_page()}
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(
                f"{path.relative_to(REFERENCE.parents[1])} is stale: run `python -m tools.reference`", file=sys.stderr
            )
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages[path], "utf-8")
        print(f"wrote {path.relative_to(REFERENCE.parents[1])}")
    return 0


# --- the API


def api_page() -> str:
    """Everything `perdure` exports, in the order of its `__all__`."""
    lines = ["# The Python API", "", NOTE, "", "Everything here is imported from `perdure`.", ""]
    for name in perdure.__all__:
        if not name.startswith("__"):
            lines += entry(name, getattr(perdure, name))
    return finished(lines)


def entry(name: str, thing: object) -> Iterator[str]:
    """One exported name: heading, signature, docstring, members."""
    yield from (f"## {name}", "")
    if inspect.isclass(thing):
        if not issubclass(thing, BaseException):
            yield from signature(name, thing)
        yield from prose(inspect.cleandoc(thing.__doc__ or ""))
        for member, value in vars(thing).items():
            if not member.startswith("_"):
                yield from entry_of_member(name, member, value)
    elif callable(thing):
        yield from signature(name, thing)
        yield from prose(inspect.getdoc(thing) or "")
    else:
        yield from (f"`{name} = {str(thing).replace('typing.', '')}`", "")


def entry_of_member(owner: str, name: str, value: object) -> Iterator[str]:
    """A public method or property of a class; nothing for anything else."""
    if isinstance(value, property):
        yield from (f"### {owner}.{name}", "")
        yield from prose(inspect.getdoc(value) or "")
    elif isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
        function = cast("Callable[..., object]", getattr(value, "__func__", value))
        yield from (f"### {owner}.{name}", "")
        yield from signature(f"{owner}.{name}", function)
        yield from prose(inspect.getdoc(function) or "")


def signature(name: str, thing: Callable[..., object]) -> Iterator[str]:
    """The call as a text block, one parameter a line where it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    parts: list[str] = []
    for index, parameter in enumerate(parameters):
        first_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY and (
            index == 0
            or parameters[index - 1].kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        )
        parts += ["*"] if first_keyword else []
        parts.append(shown(parameter))
    returned = found.return_annotation
    arrow = "" if inspect.isclass(thing) or returned is inspect.Signature.empty else f" -> {annotation(returned)}"
    start = "async " if inspect.iscoroutinefunction(thing) else ""
    one_line = f"{start}{name}({', '.join(parts)}){arrow}"
    yield "```text"
    if len(one_line) <= 100:
        yield one_line
    else:
        yield f"{start}{name}("
        yield from (f"    {part}," for part in parts)
        yield f"){arrow}"
    yield from ("```", "")


def shown(parameter: inspect.Parameter) -> str:
    """A parameter as it would be written."""
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = star + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        default = repr(parameter.default)
        text += " = " + ("..." if default.startswith("<") or default == "Ellipsis" else default)
    return text


def annotation(value: object) -> str:
    """An annotation without quotes and without module names."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return re.sub(r"\b(?:typing|collections\.abc|datetime|perdure(?:\.\w+)*)\.(?=\w)", "", text)


def prose(docstring: str) -> Iterator[str]:
    """A docstring in Google style as Markdown."""
    section = ""
    for line in docstring.splitlines():
        heading = SECTION.match(line)
        indented = line.startswith("    ")
        if heading:
            section = heading.group(1)
            yield from (f"**{section}**", "")
        elif section and indented:
            item = ITEM.match(line.strip()) if not line.startswith("     ") else None
            if item:
                yield f"- `{item.group(1)}`: {item.group(2)}"
            else:
                yield line.strip() if section in ("Returns", "Yields") else f"  {line.strip()}"
        else:
            section = section if not line.strip() else ""
            yield line
    yield ""


# --- the command line


def cli_page() -> str:
    """Every command with its arguments and options, and the exit codes."""
    from perdure.cli import reference  # the page's contents belong to the command line

    return finished(["# The command line", "", NOTE, "", *reference.lines()])


def finished(lines: list[str]) -> str:
    """The page's text: no trailing blanks, no double empty lines."""
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
