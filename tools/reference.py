"""Write docs/reference/api.md and cli.md from docstrings and from the command line's own help.

`python -m tools.reference` writes the pages; with `--check` it only compares, and exits with 1 if a page is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, cast

import typer

import perdure
import perdure.errors
import perdure.sync
import perdure.testing.clock
import perdure.testing.evolve
from perdure.cli.exits import MEANINGS
from perdure.cli.main import ABOUT, COMMANDS, build
from perdure.errors import PerdureError

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


GROUPS = {
    "Define": ("Pipeline", "step", "retired", "optional", "nothing", "Retry", "Fail", "FailureDetail"),
    "Inside a handler": ("Invocation", "UnwindInvocation", "PureInvocation", "FailedInvocation"),
    "Run": ("App", "Engine", "Client", "Run", "RunInfo"),
    "Operate": (
        "Selector",
        "HoldRun",
        "ReleaseRun",
        "RetryRun",
        "CancelRun",
        "ResolveRun",
        "AbandonRun",
        "RunVerdict",
        "PipelineHold",
    ),
    "Results": ("Result", "Succeeded", "Failed", "Canceled"),
}
"""Names in the order of a reader's need; what is exported and not listed comes after them, errors last."""

MODULES = {
    perdure.sync: ("connect", "SyncClient"),
    perdure.testing.clock: ("run_virtual", "VirtualSystem", "Stuck"),
    perdure.testing.evolve: ("evolve", "Evolution", "Call", "Each"),
}
"""What is public, and imported from a module of its own."""

HALVES = {"Operator"}
"""Bases whose members are shown with the class that users meet."""

CONSTRUCTED = {"App", "Fail", "Pipeline", "Retry"}
"""Classes that users make objects of; the others are given to them."""


def api_page() -> str:
    """Everything `perdure` exports."""
    lines = ["# The Python API", "", NOTE, "", "Everything is imported from `perdure`, but for the last sections."]
    exported = {name: cast("object", getattr(perdure, name)) for name in perdure.__all__ if not name.startswith("__")}
    groups = {heading: [name for name in names if name in exported] for heading, names in GROUPS.items()}
    listed = {name for names in groups.values() for name in names}
    errors = [n for n, v in exported.items() if inspect.isclass(v) and issubclass(v, PerdureError)]
    groups["More"] = [name for name in exported if name not in listed and name not in errors]
    groups["Errors"] = errors
    for heading, names in groups.items():
        lines += ["", f"## {heading}", ""]
        if heading == "Errors":
            lines += list(prose(inspect.cleandoc(perdure.errors.__doc__ or "")))
        for name in names:
            lines += entry(name, exported[name])
    for module, public in MODULES.items():
        lines += ["", f"## From {module.__name__}", ""]
        for name in public:
            lines += entry(name, cast("object", getattr(module, name)))
    return finished(lines)


def entry(name: str, thing: object) -> Iterator[str]:
    """One exported name: heading, signature, docstring, members."""
    yield from (f"### {name}", "")
    if inspect.isclass(thing):
        yield from class_entry(name, thing)
    elif inspect.isfunction(thing):
        yield from signature(name, thing)
        yield from prose(inspect.getdoc(thing) or "")
    else:
        yield from (f"`{name} = {annotation(str(thing))}`", "")


def class_entry(name: str, thing: type) -> Iterator[str]:
    """A class with what it has from bases that are not public."""
    if name in CONSTRUCTED:
        yield from signature(name, thing)
    if not (thing.__doc__ or "").startswith(f"{name}("):  # what dataclasses write themselves says nothing
        yield from prose(inspect.cleandoc(thing.__doc__ or ""))
    constructor: object = vars(thing).get("__init__")
    if name in CONSTRUCTED and inspect.isfunction(constructor):
        yield from prose(inspect.cleandoc(constructor.__doc__ or "").partition("\n")[2].strip())
    silent: list[str] = []
    parts = (base for base in thing.__mro__[1:] if base.__name__.startswith("_") or base.__name__ in HALVES)
    for base in (thing, *parts):
        if base is not thing:
            yield from prose(inspect.cleandoc(base.__doc__ or "").partition("\n")[2].strip())
        for member, value in cast("dict[str, object]", dict(vars(base))).items():
            if isinstance(value, property) and not member.startswith("_") and not value.__doc__:
                silent.append(member)
            elif not member.startswith("_"):
                yield from entry_of_member(name, member, value)
    if silent:
        yield from ("Also " + ", ".join(f"`{member}`" for member in silent) + ".", "")


def entry_of_member(owner: str, name: str, value: object) -> Iterator[str]:
    """A public method or property of a class; nothing for anything else."""
    function = cast("object", getattr(value, "__func__", value))  # of a static or class method
    if isinstance(value, property):
        yield from (f"#### {owner}.{name}", "")
        yield from prose(inspect.getdoc(value) or "")
    elif inspect.isfunction(function):
        yield from (f"#### {owner}.{name}", "")
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


STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def shown(parameter: inspect.Parameter) -> str:
    """A parameter as it would be written."""
    text = STARS.get(parameter.kind.name, "") + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        default = repr(parameter.default)
        text += " = " + ("..." if default.startswith("<") or default == "Ellipsis" or len(default) > 40 else default)
    return text


def annotation(value: object) -> str:
    """An annotation without quotes and without module names."""
    text = value if isinstance(value, str) else str(inspect.formatannotation(value))
    return str(re.sub(r"\b(?:typing|collections\.abc|datetime|perdure(?:\.\w+)*)\.(?=\w)", "", text))


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
    """Every command with its own help, and the exit codes."""
    group = cast("HelpGroup", typer.main.get_command(build()))
    lines = ["# The command line", "", NOTE, "", inspect.cleandoc(ABOUT), ""]
    for heading, names in COMMANDS.items():
        lines += [f"## {heading}", ""]
        for name in names:
            lines += [f"### perdure {name}", "", "```text", *help_of(group.commands[name], name), "```", ""]
    lines += ["## Exit codes", "", "| code | meaning |", "|---|---|"]
    lines += [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    return finished(lines)


class HelpCommand(Protocol):
    """What is needed of a command; typer brings its own copy of click, whose types are private."""

    context_class: Callable[..., object]

    def get_help(self, ctx: object) -> str: ...


class HelpGroup(Protocol):
    """A command of commands."""

    commands: dict[str, HelpCommand]


def help_of(command: HelpCommand, name: str) -> list[str]:
    """The help as on a terminal 100 columns wide."""
    context = command.context_class(command, info_name=f"perdure {name}", terminal_width=100, max_content_width=100)
    return command.get_help(context).splitlines()


def finished(lines: list[str]) -> str:
    """The page's text: no trailing blanks, no double empty lines."""
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
