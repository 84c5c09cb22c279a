"""Planted mistakes: one change in the text of a core module, loaded beside the real package under another name.

The modules that decide are loaded again for every mutation, with their imports of each other rewritten, so that the
mistake reaches all of them and the real package stays as it is.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import CodeType, ModuleType

PREFIX = "mutant_of_"
SCENARIOS = "perdure.testing.scenario.core"

# In the order of their imports of each other.
RELOADED = (
    "perdure.core.frontier",
    "perdure.core.folding",
    "perdure.core.unit_reducer",
    "perdure.core.reducer",
    "perdure.core.reconciler",
    "perdure.core.plan",
    "perdure.core.attempts",
    "perdure.core.waits",
    "perdure.core.units",
    "perdure.core.commit",
    "perdure.core.admission",
    "perdure.testing.scenario.scripted",
    SCENARIOS,
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replace `old`, which stands in the module exactly once, by `new`."""

    module: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.module}: {self.what}"


class NotApplicable(Exception):
    """The text to be changed is not there, or not once: the mutation has to follow the code."""


def mutated(mutation: Mutation, source: str) -> str:
    """The source of a module with the mistake in it."""
    if source.count(mutation.old) != 1 or mutation.old == mutation.new:
        raise NotApplicable(f"{mutation}: stands {source.count(mutation.old)} times in the module: {mutation.old!r}")
    return source.replace(mutation.old, mutation.new)


@contextmanager
def loaded(mutation: Mutation | None) -> Generator[Mapping[str, ModuleType], None, None]:
    """The reloaded modules by their real names, with the mistake in them (None: as they are)."""
    modules: dict[str, ModuleType] = {}
    try:
        for name in RELOADED:
            code = _code(name, mutation if mutation is not None and name == f"perdure.core.{mutation.module}" else None)
            module = modules[name] = ModuleType(_alias(name))
            sys.modules[_alias(name)] = module
            exec(code, module.__dict__)
        yield modules
    finally:
        for name in modules:
            del sys.modules[_alias(name)]


@functools.cache
def _code(name: str, mutation: Mutation | None) -> CodeType:
    """What a module compiles to, with the mistake in it (None: as it is)."""
    source = inspect.getsource(import_module(name))
    if mutation is not None:
        source = mutated(mutation, source)
    tree = ast.fix_missing_locations(_Renamed().visit(ast.parse(source)))
    return compile(tree, f"<{mutation or 'unchanged'}>", "exec")


def _alias(name: str) -> str:
    return PREFIX + name.replace(".", "_")


class _Renamed(ast.NodeTransformer):
    """Sends imports among the reloaded modules to each other."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        if node.module in RELOADED:
            return ast.ImportFrom(_alias(node.module), node.names, 0)
        kept: list[ast.alias] = []
        found: list[ast.stmt] = []
        for name in node.names:
            full = f"{node.module}.{name.name}"
            if full in RELOADED:
                found.append(ast.Import([ast.alias(_alias(full), name.asname or name.name)]))
            else:
                kept.append(name)
        return [*found, ast.ImportFrom(node.module, kept, node.level)] if kept else found
