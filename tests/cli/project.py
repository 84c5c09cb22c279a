"""A small project for commands to work on: what a run meets is said by its input."""

from __future__ import annotations

from pathlib import Path

STORE = "sqlite:///shop.db"

SHOP = """
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from perdure import App, Fail, Invocation, Pipeline, Retry, step


@dataclass(frozen=True)
class Job:
    name: str
    trouble: Literal["", "declined", "no-route", "bad-output"] = ""


Inv = Invocation[Job, object]


async def give_back(inv: Inv, key: str) -> None:
    pass


def wants_more(inv: Inv) -> bool:
    return inv.input.name == "more"


@step("take/v1", unwind=give_back)
async def take(inv: Inv) -> str:
    return f"key of {inv.input.name}"


@step("more/v1", when=wants_more)
async def more(inv: Inv) -> None:
    pass


@step("work/v1", retry=Retry(max_attempts=1))
async def work(inv: Inv) -> int:
    if inv.input.trouble == "declined":
        raise Fail("the card was declined", reason="declined", kind="user")
    if inv.input.trouble == "no-route":
        raise OSError("no route to the bank")
    return 7


def output(inv: Inv) -> str:
    if inv.input.trouble == "bad-output":
        raise ValueError("no output today")
    return inv.input.name.upper()


job: Pipeline[Job, object, str] = Pipeline(
    id="job", input=Job, deps=object, resource=lambda j: j.name, steps=(take, more, work), output=output
)

app = App(job.bind(), store="sqlite:///shop.db")
not_an_app = job
"""

SETTINGS = '[tool.perdure]\napp = "shop:app"\n'


def write_project(folder: Path) -> None:
    """Write `shop.py` and its settings."""
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    (folder / "pyproject.toml").write_text(SETTINGS, encoding="utf-8")
