"""The core is pure: no async, clock, chance, environment, logging or other people's packages."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.tidy.source import SOURCE, aliases, calls, imports, modules

# Standard library that reaches the outside world, reads a clock or throws dice.
IMPURE_MODULES = frozenset(
    "asyncio concurrent ctypes getpass glob http io locale logging multiprocessing os pathlib platform queue random"
    " secrets selectors shutil signal socket sqlite3 ssl subprocess sys tempfile threading time urllib uuid warnings"
    " zoneinfo".split()
)
IMPURE_CALLS = frozenset(
    "open print input datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today"
    " datetime.datetime.astimezone breakpoint exec eval".split()
)
THIRD_PARTY = frozenset({"msgspec"})


def impurities(tree: ast.Module) -> list[str]:
    """What a core module may not contain, one line each."""
    found: list[str] = []
    for line, name in imports(tree):
        top = name.partition(".")[0]
        known = top in sys.stdlib_module_names or top in THIRD_PARTY or top == "perdure"
        if top in IMPURE_MODULES or not known:
            found.append(f"{line}: import of {name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await):
            found.append(f"{node.lineno}: {type(node).__name__}")
    found += [f"{call.lineno}: call of {name}" for call, name in calls(tree, aliases(tree)) if name in IMPURE_CALLS]
    return found


def test_core_is_pure() -> None:
    found = [f"{module.name}:{line}" for module in modules("src/perdure/core") for line in impurities(module.tree)]
    assert not found, "core decides, it does nothing; pass time, ids and chance in:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "async def f(): ...",
        "import time",
        "from time import monotonic",
        "import random as r",
        "from uuid import uuid4",
        "import os.path",
        "import logging",
        "import secrets",
        "from datetime import datetime\ndatetime.now()",
        "import datetime as d\nd.datetime.now(d.UTC)",
        "import numpy",
        "open('x')",
    ],
)
def test_each_impurity_is_seen(text: str) -> None:
    assert impurities(ast.parse(text))


def test_pure_code_passes() -> None:
    text = "import hashlib\nimport msgspec\nfrom datetime import UTC, datetime\nfrom perdure.errors import InvalidRun\n"
    assert impurities(ast.parse(text + "datetime.fromtimestamp(0, UTC)\n")) == []


def test_modules_import_each_other_and_not_the_package() -> None:
    """`import perdure` inside the package would tie every module to every other; generated user code is text."""
    found = [
        f"{module.name}:{node.lineno}"
        for module in modules("src/perdure")
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Import) and any(alias.name == "perdure" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "perdure" and not imports_modules(node))
    ]
    assert not found, "import from the module that owns the name:\n" + "\n".join(found)


def imports_modules(node: ast.ImportFrom) -> bool:
    """Is this `from perdure import codec`, the import of a module or package rather than of a public name?"""
    return all((SOURCE / alias.name).is_dir() or (SOURCE / f"{alias.name}.py").is_file() for alias in node.names)
