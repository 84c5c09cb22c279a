"""The entry point `perdure`: builds the commands, runs one, and turns every error into a message and an exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TypeAlias

import typer

from perdure.cli.commands import (
    abandon,
    archive,
    cancel,
    check,
    deploy,
    deployments,
    dev,
    doctor,
    drain,
    explain,
    gc,
    hold,
    init,
    journal,
    ledgers,
    limits,
    listing,
    pipelines,
    prioritize,
    release,
    resolve,
    restore,
    retry,
    run,
    scenario,
    schedules,
    send,
    show,
    submit,
    verify,
    version,
    watch,
    worker,
    workers,
)
from perdure.cli.exits import MEANINGS, Exit
from perdure.cli.problems import Report, one_line, report

Command: TypeAlias = Callable[..., int]

COMMANDS: dict[str, dict[str, Command]] = {
    "Begin": {"init": init.init, "doctor": doctor.doctor, "version": version.version},
    "Work": {"run": run.run, "worker": worker.worker, "dev": dev.dev, "submit": submit.submit, "send": send.send},
    "Look": {
        "list": listing.list_runs,
        "show": show.show,
        "watch": watch.watch,
        "explain": explain.explain,
        "journal": journal.journal,
        "verify": verify.verify,
        "schedules": schedules.schedules,
        "workers": workers.workers,
        "limits": limits.limits,
    },
    "Evolve": {
        "check": check.check,
        "deploy": deploy.deploy,
        "deployments": deployments.deployments,
        "drain": drain.drain,
        "ledgers": ledgers.ledgers,
    },
    "Operate": {
        "cancel": cancel.cancel,
        "hold": hold.hold,
        "release": release.release,
        "retry": retry.retry,
        "resolve": resolve.resolve,
        "abandon": abandon.abandon,
        "prioritize": prioritize.prioritize,
        "hold-pipeline": pipelines.hold_pipeline,
        "release-pipeline": pipelines.release_pipeline,
        "pause-schedule": schedules.pause_schedule,
        "resume-schedule": schedules.resume_schedule,
        "gc": gc.gc,
        "archive": archive.archive,
        "restore": restore.restore,
    },
    "Prove": {"scenario": scenario.scenario},
}
"""All commands in the order in which a newcomer needs them."""

ABOUT = """Durable pipelines in plain Python: run, watch and explain them.

Run `perdure init` in an empty folder to begin. Most commands find your application by themselves where
`app = "module:name"` stands under [tool.perdure] in pyproject.toml, and otherwise take it from --app or PERDURE_APP;
commands that only look or operate are content with --store or PERDURE_STORE. Arguments come before PERDURE_*
variables, and those before pyproject.toml. With --json every command answers in JSON, and says errors as JSON on
stderr. PERDURE_DEBUG=1 shows the traceback of any error.
"""


def epilog() -> str:
    """The exit codes, as the end of `perdure --help`."""
    return "\n".join(["\b", "Exit codes:", *(f"  {int(code):>3}  {meaning}" for code, meaning in MEANINGS.items())])


def build(only: str | None = None) -> typer.Typer:
    """The command line as typer sees it.

    Args:
        only: the one command that is wanted; typer reads the signature of every command it is given, which takes
            longer than most commands do. All of them where there is no command of that name.
    """
    app = typer.Typer(
        name="perdure",
        help=ABOUT,
        epilog=epilog(),
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    every = {name: command for commands in COMMANDS.values() for name, command in commands.items()}
    wanted = every if only is None or only not in every else {only: every[only]}
    for name, command in wanted.items():
        app.command(name, short_help=_summary(command))(command)
    return app


def _summary(command: Command) -> str:
    """The first line of the docstring, whole: left to itself, typer cuts it where the terminal is narrow."""
    return (command.__doc__ or "").strip().partition("\n")[0]


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"perdure {version('perdure')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Nothing before the command but this."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; those of the process by default.

    Returns:
        The exit code; what every one means stands in `exits.py`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    try:
        command = typer.main.get_command(build(arguments[0] if arguments else None))
        answer: object = command.main(args=arguments or ["--help"], prog_name="perdure", standalone_mode=False)
        if not arguments:
            return Exit.USAGE
        return answer if isinstance(answer, int) else Exit.OK
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else Exit.BUG
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except Exception as error:
        return failed(error, as_json="--json" in arguments)


def open_streams() -> None:
    """Python has no stdout or stderr where the process was started without one, as by some service managers."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for as long as the process


def failed(error: Exception, *, as_json: bool) -> int:
    """Say an error, whatever it is; returns the exit code."""
    if os.environ.get("PERDURE_DEBUG", "") not in {"", "0"}:
        traceback.print_exc()
    known = report(error)
    if known is None:
        _bug(error)
        return Exit.BUG
    _say(known, as_json=as_json)
    return known.code


def _say(known: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(known.json(), ensure_ascii=False), file=sys.stderr)
        return
    for line in known.lines():
        print(line, file=sys.stderr)


def _bug(error: Exception) -> None:
    print(
        f"error: perdure failed in a way it should not: {type(error).__name__}: {one_line(str(error))}", file=sys.stderr
    )
    print("hint: please report this, with the traceback:", file=sys.stderr)
    traceback.print_exception(error)


if __name__ == "__main__":
    sys.exit(main())
