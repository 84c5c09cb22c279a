"""House rules that a reader would otherwise have to keep in mind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.source import ROOT, SOURCE, Documented, Function, Module, aliases, calls, dotted, modules, tracked_files

# Each entry needs a reason that its author would defend.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
SLEEPING_TESTS: dict[str, str] = {}
ANY_ALLOWED: dict[str, str] = {}

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60

# Written in pieces: this file obeys its own rule.
WORKPLACE = re.compile(
    r"(?<![\w.-])/wor"
    + r"k/(main|shar"
    + r"ed|\.library)|\.\./shar"
    + r"ed|shar"
    + r"ed/([A-Z]{4,}\.md|scenarios|bench|data)"
)
SILENCED = re.compile(r"#\s*(type:\s*ignore|pyright:|mypy:|noqa|ruff:\s*noqa|pragma:)")
CODES = r"[A-Z]+\d+(,\s*[A-Z]+\d+)*"
SILENCED_WITH_REASON = re.compile(
    rf"#\s*((type|pyright):\s*ignore\[[\w, -]+\]|(ruff:\s*)?noqa:\s*{CODES}|pragma:\s*no cover)\W+\w"
)


def fail(found: list[str], why: str) -> None:
    """Fail with every place that breaks a rule, and what to do about it."""
    if found:
        pytest.fail(why + ":\n  " + "\n  ".join(found), pytrace=False)


# --- size -------------------------------------------------------------------------------------------------------------


def function_lines(function: Function) -> int:
    """Lines of a function without its decorators and docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_files_are_read_in_one_sitting() -> None:
    sizes = {module.name: module.text.count("\n") for module in modules("src")}
    found = [
        f"{name}: {size} lines" for name, size in sizes.items() if size > MAX_FILE_LINES and name not in LONG_FILES
    ]
    fail(found, f"over {MAX_FILE_LINES} lines; which second idea is hidden inside")


def test_functions_hold_one_idea() -> None:
    found = [
        f"{module.name}:{function.lineno} {name}: {size} lines"
        for module in modules("src")
        for name, function in module.functions()
        if (size := function_lines(function)) > MAX_FUNCTION_LINES and f"{module.name}::{name}" not in LONG_FUNCTIONS
    ]
    fail(found, f"over {MAX_FUNCTION_LINES} lines; which second idea is hidden inside")


def test_exceptions_are_still_needed() -> None:
    """An entry of an allow-list whose file or function is gone, or no longer breaks the rule, is removed."""
    sizes = {module.name: module.text.count("\n") for module in modules("src")}
    functions = {
        f"{module.name}::{name}": function_lines(function)
        for module in modules("src")
        for name, function in module.functions()
    }
    stale = [name for name in LONG_FILES if sizes.get(name, 0) <= MAX_FILE_LINES]
    stale += [name for name in LONG_FUNCTIONS if functions.get(name, 0) <= MAX_FUNCTION_LINES]
    stale += [name for name in SLEEPING_TESTS if name not in {place for place, _ in sleeps()}]
    stale += [name for name in ANY_ALLOWED if name not in {place for place, _ in any_in_signatures()}]
    fail(stale, "allowed, but no longer needed")


# --- docstrings -------------------------------------------------------------------------------------------------------


def test_every_module_says_what_it_is_for() -> None:
    places = ("src", "tests", "tools", "examples", "benchmarks")
    found = [module.name for place in places for module in modules(place) if not ast.get_docstring(module.tree)]
    fail(found, "a module starts with a docstring")


def exported() -> list[str]:
    """The names in `perdure.__all__`."""
    for node in ast.walk(Module(SOURCE / "__init__.py").tree):
        if isinstance(node, ast.Assign) and any(dotted(target) == "__all__" for target in node.targets):
            assert isinstance(node.value, ast.List | ast.Tuple)
            return [str(ast.literal_eval(name)) for name in node.value.elts]
    return []


def test_public_names_have_docstrings() -> None:
    documented: dict[str, list[tuple[str, Documented]]] = {}
    for module in modules("src"):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef | Function):
                documented.setdefault(node.name, []).append((module.name, node))
    found: list[str] = []
    for name in exported():
        for place, item in documented.get(name, []):
            if not ast.get_docstring(item) and not is_overload(item):
                found.append(f"{place}: {name}")
            if isinstance(item, ast.ClassDef):
                found += [f"{place}: {name}.{method.name}" for method in undocumented_methods(item)]
    fail(found, "exported from perdure, so it states its contract")


def undocumented_methods(node: ast.ClassDef) -> Iterator[Function]:
    for method in node.body:
        if not isinstance(method, Function) or method.name.startswith("_"):
            continue
        if not ast.get_docstring(method) and not is_overload(method) and not is_setter(method):
            yield method


def is_overload(node: Documented) -> bool:
    return not isinstance(node, ast.Module) and any(dotted(d).endswith("overload") for d in node.decorator_list)


def is_setter(node: Function) -> bool:
    return any(dotted(d).endswith((".setter", ".deleter")) for d in node.decorator_list)


# --- what is not written ----------------------------------------------------------------------------------------------


def test_no_assert_in_the_library() -> None:
    """`python -O` removes them: what must hold is checked by an `if`, what cannot be is `assert_never`."""
    found = [
        f"{module.name}:{node.lineno}"
        for module in modules("src")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assert)
    ]
    fail(found, "no assert in src; raise the error that says who acts next")


def sleeps() -> Iterator[tuple[str, int]]:
    """Every wait by the clock in a test, as `file::function` and line; `asyncio.sleep(0)` only yields and is fine.

    The programs of `tests/chaos` do things at times: to them time is what is tested.
    """
    for module in modules("tests"):
        if module.name.startswith("tests/chaos/"):
            continue
        names = aliases(module.tree)
        for name, function in module.functions():
            for call, called in calls(function, names):
                zero = bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0
                if called in {"time.sleep", "asyncio.sleep", "anyio.sleep"} and not zero:
                    yield f"{module.name}::{name}", call.lineno


def test_tests_wait_for_events() -> None:
    found = [f"{place}:{line}" for place, line in sleeps() if place not in SLEEPING_TESTS]
    fail(sorted(set(found)), "wait for an event or move the virtual clock, never sleep")


def any_in_signatures() -> Iterator[tuple[str, int]]:
    """Public functions and methods of the library whose annotations say `Any`, as `file::function` and line."""
    for module in modules("src"):
        names = aliases(module.tree)
        anything = {"Any", "typing.Any"} | {short for short, full in names.items() if full == "typing.Any"}
        for name, function in module.functions():
            public = not any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
            if public and any(says(hint, anything) for hint in hints(function)):
                yield f"{module.name}::{name}", function.lineno


def says(hint: ast.AST, names: set[str]) -> bool:
    """Does an annotation use one of these names? `Coroutine[Any, Any, T]` is how both checkers want it written."""
    if isinstance(hint, ast.Subscript) and dotted(hint.value) == "Coroutine" and isinstance(hint.slice, ast.Tuple):
        return says(hint.slice.elts[-1], names)
    return dotted(hint) in names or any(says(child, names) for child in ast.iter_child_nodes(hint))


def hints(function: Function) -> Iterator[ast.expr]:
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for argument in every:
        if argument is not None and argument.annotation is not None:
            yield argument.annotation
    if function.returns is not None:
        yield function.returns


def test_no_any_in_public_signatures() -> None:
    found = [f"{place} (line {line})" for place, line in any_in_signatures() if place not in ANY_ALLOWED]
    fail(found, "say what it is (`object`, a type variable, a Protocol), not Any")


@pytest.mark.parametrize(
    ("hint", "found"),
    [
        ("Any", True),
        ("dict[str, Any]", True),
        ("Callable[[Any], int]", True),
        ("Coroutine[Any, Any, int]", False),
        ("Coroutine[Any, Any, list[Any]]", True),
        ("object", False),
    ],
)
def test_what_counts_as_any(hint: str, found: bool) -> None:
    assert says(ast.parse(hint, mode="eval"), {"Any"}) is found


def silent(line: str) -> bool:
    """Does this line silence a tool without naming the code, or without a reason behind it?"""
    if not SILENCED.search(line):
        return False
    return not SILENCED_WITH_REASON.search(line)


@pytest.mark.parametrize(
    ("line", "good"),
    [
        ("x = 1  # type: ignore[arg-type]  # mypy cannot see the overload", True),
        ("x = 1  # type: ignore[arg-type]", False),
        ("x = 1  # type: ignore  # because", False),
        ("x = 1  # noqa: PLW0603  one switch for the process", True),
        ("x = 1  # noqa: PLW0603", False),
        ("x = 1  # noqa", False),
        ("x = 1  # pyright: ignore[reportPrivateUsage]  # a test looks inside", True),
        ("x = 1  # pyright: ignore[reportPrivateUsage]", False),
    ],
)
def test_what_counts_as_a_reason(line: str, good: bool) -> None:
    assert silent(line) is not good


def test_silenced_tools_have_a_reason() -> None:
    found = [
        f"{module.name}:{number}: {line.strip()}"
        for place in ("src", "tests", "tools", "examples", "benchmarks")
        for module in modules(place)
        if module.path != ROOT / "tests" / "tidy" / "test_style.py"
        for number, line in enumerate(module.text.splitlines(), start=1)
        if silent(line)
    ]
    fail(found, "name the code and give the reason on the same line")


def test_the_repository_stands_alone() -> None:
    found: list[str] = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if WORKPLACE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    fail(found, "paths of a machine or of another folder have no place in the repository")
