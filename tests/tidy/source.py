"""Reading the repository's own files, once, for the house rules."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "perdure"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the repository."""

    path: Path

    @property
    def name(self) -> str:
        """Path from the root of the repository, with forward slashes."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        """What stands in the file."""
        return _text(self.path)

    @property
    def tree(self) -> ast.Module:
        """The file, parsed. Nobody may change it: it is shared."""
        return _tree(self.path)

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Every function and method with its dotted name, nested ones included."""
        yield from _functions(self.tree, "")


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path), filename=str(path))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def modules(folder: str) -> list[Module]:
    """All Python files under a folder of the repository, in order."""
    return [Module(path) for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]


def dotted(node: ast.AST) -> str:
    """`time.sleep` for the expression `time.sleep`; empty for anything that is not a plain dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported: `from os import path` is `os.path`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def aliases(tree: ast.Module) -> dict[str, str]:
    """What the imported names of a file stand for: `from time import sleep as nap` is `nap` to `time.sleep`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def calls(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[ast.Call, str]]:
    """Every call below a node of something imported or built in, by its full name; `names` are the file's aliases."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and (name := dotted(child.func)):
            head, dot, rest = name.partition(".")
            yield child, names.get(head, head) + dot + rest


def tracked_files() -> list[Path]:
    """Files that are, or are about to be, in the repository; without git, everything but environments and caches."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [name for name in listing.stdout.split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    return [
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]
