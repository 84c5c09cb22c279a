"""A project whose runs wait for messages, other runs, items and child runs."""

WAITING = """
from dataclasses import dataclass
from datetime import timedelta

from perdure import App, AwaitMessage, AwaitRuns, ForEach, ForEachRun, Invocation, ItemInvocation
from perdure import Pipeline, Retry, nothing

Inv = Invocation[str, object]


@dataclass
class Approval:
    by: str


approval = AwaitMessage("approval/v1", name="approval", type=Approval, timeout=timedelta(days=3))


def by(inv: Inv) -> str:
    return inv[approval].by


asked: Pipeline[str, object, str] = Pipeline(id="asked", input=str, deps=object, steps=(approval,), output=by)


def the_run(inv: Inv) -> list[str]:
    return [inv.input]


follow = AwaitRuns("follow/v1", runs=the_run)
follower: Pipeline[str, object, None] = Pipeline(
    id="follower", input=str, deps=object, steps=(follow,), output=nothing
)


def two(inv: Inv) -> list[str]:
    return [f"{inv.input}-a", f"{inv.input}-b"]


legs = ForEachRun("legs/v1", pipeline=asked, inputs=two)
parent: Pipeline[str, object, None] = Pipeline(id="parent", input=str, deps=object, steps=(legs,), output=nothing)


def numbers(inv: Inv) -> list[int]:
    return [1, 2, 3, 4]


async def work(inv: ItemInvocation[str, object, int]) -> int:
    if inv.item == 3:
        raise OSError("no route")
    return inv.item


items = ForEach("items/v1", items=numbers, handler=work, retry=Retry(initial=86_400, cap=86_400, jitter=0))
itemized: Pipeline[str, object, None] = Pipeline(
    id="itemized", input=str, deps=object, steps=(items,), output=nothing
)

app = App(asked.bind(), follower.bind(), parent.bind(), itemized.bind(), store="sqlite:///wait.db")
"""
