"""Payments at a bank that keeps books in a file, in as many versions as there are deployments: `app:app`.

`PERDURE_CHAOS_VERSION` says which version this is: every odd one inserts a step, every even one retires it, so that no
run that is anywhere becomes invalid. Whatever the bank does is one line in the file that `PERDURE_CHAOS_BOOKS` names.
"""

from __future__ import annotations

import asyncio
import os
import random

from perdure import App, Fail, Invocation, Pipeline, Retry, UnwindInvocation, retired, step
from perdure.define.step import AnyStep

Inv = Invocation[int, object]
Unwind = UnwindInvocation[int, object]

VERSION = int(os.environ.get("PERDURE_CHAOS_VERSION", "1"))
LEASE_S = 2.0


def book(kind: str, run: str, key: str) -> None:
    """The bank does something that cannot be taken back; doing it again under the same key does nothing."""
    file = os.open(os.environ["PERDURE_CHAOS_BOOKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{kind} {run} {key}\n".encode())
    os.close(file)


async def _work() -> None:
    await asyncio.sleep(random.random() * 0.04)
    if random.random() < 0.02:
        raise OSError("the bank does not answer")


async def release(inv: Unwind, state: str) -> None:
    await _work()
    book("release", inv.run_id, state)


async def release_in_doubt(inv: Unwind) -> None:
    await _work()
    book("release", inv.run_id, "reserve")


@step("reserve/v1", unwind=release, unwind_in_doubt=release_in_doubt)
async def reserve(inv: Inv) -> str:
    book("reserve", inv.run_id, inv.idempotency_key)
    await _work()
    return "reserve"


async def refund(inv: Unwind, state: str) -> None:
    await _work()
    book("refund", inv.run_id, state)


async def refund_in_doubt(inv: Unwind) -> None:
    await _work()
    book("refund", inv.run_id, "pay")


@step("pay/v1", unwind=refund, unwind_in_doubt=refund_in_doubt)
async def pay(inv: Inv) -> str:
    book("pay", inv.run_id, inv.idempotency_key)
    await _work()
    return "pay"


@step("confirm/v1")
async def confirm(inv: Inv) -> None:
    await _work()
    if inv.input % 5 == 0:
        raise Fail("the customer has changed their mind", reason="declined")


def _extra(number: int) -> AnyStep[int, object]:
    @step(f"extra-{number}/v1")
    async def extra(inv: Inv) -> None:
        await _work()

    return extra


def payment(version: int) -> Pipeline[int, object, int]:
    """The pipeline of a version."""
    steps: list[AnyStep[int, object]] = [reserve, pay, confirm]
    for number in range(1, version + 1, 2):
        extra = _extra(number)
        steps.insert(1 + number % 4 // 2, extra if number == version else retired(extra))
    return Pipeline(
        id="payment",
        input=int,
        deps=object,
        steps=tuple(steps),
        output=lambda inv: inv.input,
        retry=Retry(initial=0.05, cap=1.0),
    )


current = payment(VERSION)
app = App(current.bind(), store="memory://", concurrency=32, lease=LEASE_S, drain_timeout=1.0)
