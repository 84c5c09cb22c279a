"""Runs every code block of a page of documentation: `python -m tools.docs_blocks docs/tutorial.md`.

CONTRIBUTING.md describes what a block may be and the marks before it. A page is one story: its blocks run in order, in
one temporary folder, its Python blocks in one namespace, its console blocks in one shell. Each page has a process of
its own (this one, with one page; with several it starts one for each).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.docs_shell import Shell

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)\s*$")
MARK = re.compile(
    r"<!--\s*(?P<name>file|expect|exit|raises|output|no-run|db|server)(?::\s*(?P<value>.*?))?\s*-->", re.DOTALL
)
PROMPT = "$ "


class BlockError(Exception):
    """A block does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block with the marks that stand directly before it."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def place(self) -> str:
        """Where it starts, as editors understand it."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order. A fence that is never closed is an error."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    number, before = 0, ""
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            # Marks belong to the block right behind them: text in between sets them free, blank lines do not.
            before = before + lines[number] + "\n" if is_mark_text(before + lines[number]) else ""
            number += 1
            continue
        fence, indent = opening["fence"], len(opening["indent"])
        end = next((at for at in range(number + 1, len(lines)) if lines[at].strip() == fence), None)
        if end is None:
            raise BlockError(f"{page}:{number + 1}: the block is never closed")
        body = "".join(line[indent:] + "\n" for line in lines[number + 1 : end])
        marks = {mark["name"]: (mark["value"] or "").strip() for mark in MARK.finditer(before)}
        found.append(Block(page, number + 1, opening["language"], body, marks))
        number, before = end + 1, ""
    return found


def is_mark_text(text: str) -> bool:
    """Is this nothing but comments, the last of which may still be open, and blank lines?"""
    rest = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).strip()
    return not rest or rest.startswith("<!--")


def matches(shown: str, printed: str) -> bool:
    """Does the output look as shown? `...` stands for anything, alone on a line also for any number of lines.

    Runs of spaces count as one, and blank lines do not count.
    """
    return re.fullmatch(pattern(shown), plain(printed), re.DOTALL) is not None


def plain(text: str) -> str:
    """The text without colours, blank lines and doubled spaces; every line ends in a line feed."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "".join(line + "\n" for line in lines if line)


def pattern(shown: str) -> str:
    """A regular expression for what is shown."""
    parts: list[str] = []
    for line in plain(shown).splitlines():
        if line == "...":
            parts.append(r"(?:[^\n]*\n)*?")
        else:
            parts.append(r"[^\n]*?".join(re.escape(piece) for piece in line.split("...")) + r"\n")
    return "".join(parts)


class Page:
    """One page while it runs; the current folder is the page's own."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.shell = Shell()
        self.printed = ""  # by the block before, for a block marked `output`
        self.ends = contextlib.ExitStack()

    def run(self, block: Block) -> str | None:
        """Run one block; gives a line to print, or None. Raises BlockError."""
        if "no-run" in block.marks:
            if not block.marks["no-run"]:
                raise BlockError("`no-run` needs a reason")
            return f"{block.place}: not run: {block.marks['no-run']}"
        if "server" in block.marks:
            self.serve(block.marks["server"])
        if "file" in block.marks:
            target = Path(block.marks["file"])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
            return None
        if "output" in block.marks:
            self.compare(block.text)
            return None
        runners: dict[str, Callable[[Block], None]] = {
            "python": self.python,
            "console": self.console,
            "bash": self.console,
            "sh": self.console,
            "sql": self.sql,
            "json": lambda found: self.parse(json.loads, found),
            "toml": lambda found: self.parse(tomllib.loads, found),
            "text": lambda found: None,
            "mermaid": lambda found: None,
        }
        if block.language not in runners:
            raise BlockError(f"no way to run {block.language or 'a block without a language'}; use text or `no-run`")
        runners[block.language](block)
        if "expect" in block.marks:
            self.compare(block.marks["expect"])
        return None

    def serve(self, variable: str) -> None:
        """Start a PostgreSQL for the rest of the page; its URL is the value of an environment variable."""
        from tests.postgres import PostgresServer

        server = PostgresServer()
        self.ends.callback(server.remove)
        server.start()
        os.environ[variable] = server.url().partition("&schema=")[0]

    def compare(self, shown: str) -> None:
        """Compare what the last block printed with what the page shows."""
        if not matches(shown, self.printed):
            raise BlockError(f"printed\n{indented(self.printed)}\nbut the page shows\n{indented(shown)}")

    def python(self, block: Block) -> None:
        """Execute a Python block in the namespace of the page."""
        sys.modules["__main__"] = self.module
        wanted = block.marks.get("raises")
        source = "\n" * block.line + block.text  # so that a traceback names the line of the page
        out = io.StringIO()
        raised: str | None = None
        try:
            with contextlib.redirect_stdout(out):
                exec(compile(source, str(block.page), "exec", dont_inherit=True), vars(self.module))
        except Exception as error:
            raised = type(error).__name__
            if raised != wanted:
                raise BlockError("".join(traceback.format_exception(error))) from error
        finally:
            self.printed = out.getvalue()
        if wanted is not None and raised is None:
            raise BlockError(f"did not raise {wanted}")

    def console(self, block: Block) -> None:
        """Run the commands of a block in the shell of the page and compare what each prints with what is shown."""
        self.printed = ""
        wanted = int(block.marks.get("exit", "0"))
        commands = split_commands(block.text)
        for at, (command, shown) in enumerate(commands):
            printed, code = self.shell.run(command)
            self.printed += printed
            if code != (wanted if at == len(commands) - 1 else 0):
                raise BlockError(f"{command}\nexited with {code}, not {wanted}, and printed\n{indented(printed)}")
            if shown.strip() and not matches(shown, printed):
                raise BlockError(f"{command}\nprinted\n{indented(printed)}\nbut the page shows\n{indented(shown)}")

    def sql(self, block: Block) -> None:
        """Run one statement on the database that the mark `db` names, and keep its rows, columns apart by ` | `."""
        if "db" not in block.marks:
            raise BlockError("an SQL block needs the mark `db: FILE`")
        with contextlib.closing(sqlite3.connect(f"file:{block.marks['db']}?mode=ro", uri=True)) as database:
            rows = database.execute(block.text).fetchall()
        self.printed = "".join(" | ".join(str(value) for value in row) + "\n" for row in rows)

    def parse(self, reader: Callable[[str], object], block: Block) -> None:
        """See that a block is well-formed."""
        try:
            reader(block.text)
        except ValueError as error:
            raise BlockError(f"not {block.language}: {error}") from error


def split_commands(text: str) -> list[tuple[str, str]]:
    """Commands with the output shown for each. A block without a prompt is one script with no output shown."""
    if not any(line.startswith(PROMPT) for line in text.splitlines()):
        return [(text, "")]
    commands: list[tuple[str, str]] = []
    lines = text.splitlines()
    while lines:
        line = lines.pop(0)
        if line.startswith(PROMPT):
            command = line.removeprefix(PROMPT)
            while command.endswith("\\") and lines:
                command = command[:-1] + lines.pop(0).removeprefix("> ")
            commands.append((command, ""))
        elif commands:
            commands[-1] = (commands[-1][0], commands[-1][1] + line + "\n")
        elif line.strip():
            raise BlockError("output is shown before the first command")
    return commands


def indented(text: str) -> str:
    """The text, set apart from the message around it."""
    return "\n".join("    " + line for line in text.rstrip().splitlines()) or "    (nothing)"


def run_page(page: Path) -> int:
    """Run one page in a temporary folder; prints what failed and gives the number of blocks that did."""
    blocks = blocks_of(page)
    with tempfile.TemporaryDirectory(prefix="perdure-docs-") as folder:
        back = Path.cwd()
        os.chdir(folder)
        sys.path.insert(0, folder)
        running = Page()
        try:
            for block in blocks:
                try:
                    said = running.run(block)
                except BlockError as error:
                    print(f"{block.place}: {error}")
                    return 1  # the rest of the story has lost its beginning
                if said:
                    print(said)
        finally:
            running.shell.close()
            running.ends.close()
            sys.path.remove(folder)
            os.chdir(back)
    print(f"{page}: {len(blocks)} blocks")
    return 0


def main() -> int:
    """Run pages; 1 if a block of any of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs_blocks", description="Run the code blocks of pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    pages: list[Path] = parser.parse_args().pages
    if len(pages) == 1:
        try:
            return run_page(pages[0].resolve())
        except BlockError as error:
            print(error)
            return 1
    codes = [
        subprocess.run([sys.executable, "-m", "tools.docs_blocks", str(page)], cwd=ROOT, check=False).returncode
        for page in pages
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
