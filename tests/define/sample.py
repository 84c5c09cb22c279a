"""A small pipeline to define against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure import Invocation, Pipeline, Step, UnwindInvocation, optional, step


@dataclass
class PayoutInput:
    invoice_id: str
    amount_cents: int = 100
    tags: list[str] = field(default_factory=list[str])


@dataclass
class Hold:
    hold_id: str


@dataclass
class Transfer:
    transfer_id: str


class Deps:
    def __init__(self) -> None:
        self.calls: list[str] = []


Inv = Invocation[PayoutInput, Deps]
Undo = UnwindInvocation[PayoutInput, Deps]


async def release(inv: Undo, hold: Hold) -> None:
    inv.deps.calls.append(f"release {hold.hold_id} of {inv.forward_key} with {inv.idempotency_key}")


def is_large(inv: Inv) -> bool:
    return inv.input.amount_cents > 1_000


def no_approval(inv: Inv) -> str:
    return f"nobody asked about {inv.input.invoice_id}"


@step("reserve/v1", unwind=release)
async def reserve(inv: Inv) -> Hold:
    """Puts the money aside."""
    return Hold(inv.idempotency_key)


@step("approve/v1", when=is_large)
async def approve(inv: Inv) -> str:
    return "ada"


@step("annotate/v1", if_skipped=no_approval)
def annotate(inv: Inv) -> str:
    return "annotated"


@step("send/v1", needs=(reserve, optional(approve), annotate))
def send(inv: Inv) -> Transfer:
    approver = inv.get(approve)
    return Transfer(f"{inv[reserve].hold_id} {approver} {inv[annotate]}")


def transfer_of(inv: Inv) -> Transfer:
    return inv[send]


payout: Pipeline[PayoutInput, Deps, Transfer] = Pipeline(
    id="payout", input=PayoutInput, deps=Deps, steps=(reserve, approve, annotate, send), output=transfer_of
)


def build(steps: Sequence[Any], **changes: Any) -> Pipeline[Any, Any, Any]:
    """A pipeline as an author without a type checker would build it."""
    pipeline: Any = Pipeline
    arguments: dict[str, Any] = {"id": "p", "input": PayoutInput, "deps": Deps, "steps": steps, "output": nobody}
    built: Pipeline[Any, Any, Any] = pipeline(**(arguments | changes))
    return built


def nobody(inv: Inv) -> None:
    return None


def decorated(id: str, **options: Any) -> Callable[[Callable[..., Any]], Step[Any, Any, Any]]:
    """`step` as an author without a type checker would use it."""
    made: Any = step
    found: Callable[[Callable[..., Any]], Step[Any, Any, Any]] = made(id, **options)
    return found


def stripped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its return annotation."""
    del function.__annotations__["return"]
    return function
