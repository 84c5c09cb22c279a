"""What callers ask of the engines of a play, and of the client beside them: submissions, operations, messages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from perdure.define.pipeline import AnyPipeline
from perdure.runtime.client import Client
from perdure.testing.simulation.calls import Callers, How
from perdure.testing.simulation.designs import Evolution, first_design
from perdure.testing.simulation.dice import Dice
from perdure.testing.simulation.history import History
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.process import Process


class Asking:
    """See the module."""

    def __init__(self, dice: Dice, history: History) -> None:
        self.dice = dice
        self.history = history
        self.callers = Callers(dice, history)
        self._orders: list[tuple[str, Order]] = []
        self._pipelines: dict[str, AnyPipeline] = {}
        self._evolutions = [
            Evolution([first_design("orders", "live", dice)]),
            Evolution([first_design("errands", dice.choice(("once", "none", "live")), dice)]),
        ]
        self._client: Client | None = None

    def _asked(self) -> Process | None:
        """The process that a caller asks, if he asks one."""
        raise NotImplementedError

    def _call(self, name: str, work: Callable[[int, Client], Coroutine[object, object, None]]) -> None:
        """A caller asks the engine, or a client beside it."""
        process = self._asked()
        engine = process.engine if process is not None else None
        if process is not None and engine is not None and self.dice.maybe(0.6):
            self.callers.call(name, lambda number: work(number, engine), process.calls)
        elif self._client is not None:
            client = self._client
            self.callers.call(name, lambda number: work(number, client))

    def _resource(self) -> str:
        return f"r{self.dice.number(0, 4)}"

    async def _submit(self, action: str) -> None:
        known = self.dice.choice(self._orders) if self._orders else None
        if known is not None and action == "submit again":
            pipeline_id, order = known
        elif known is not None and action == "submit other input":
            pipeline_id, order = known[0], Order(len(self._orders) + 1_000, known[1].resource)
        else:
            pipeline_id = "errands" if self.dice.maybe(0.25) else "orders"
            order = Order(len(self._orders), self._resource())
        how = How()
        match action:
            case "submit to the queue" | "submit to replace" | "submit or be refused":
                pipeline_id = "orders"
                how = {"submit to the queue": How("queue"), "submit to replace": How("replace")}.get(
                    action, How("reject")
                )
            case "submit under a key":
                pipeline_id, n = "orders", self.dice.number(0, 4)
                order = Order((5_000 if self.dice.maybe(0.8) else 6_000) + n, f"r{n}")
                how = How("join" if self.dice.maybe(0.5) else "queue", f"k{n}")
            case _:
                pass
        if how.on_busy in ("queue", "replace") and self.history.doors.now.mutex:
            how = How("join", how.key)  # nobody waits for a mutex
        self._orders.append((pipeline_id, order))
        delay_s = self.dice.delay_s(120.0) if action == "submit with delay" else None
        deadline_s = self.dice.delay_s(20.0) if action == "submit with deadline" else None
        pipeline = self._pipelines[pipeline_id]
        self._call(
            action,
            lambda number, client: self.callers.submit(number, client, pipeline, order, delay_s, deadline_s, how),
        )

    def _hold_pipeline(self, action: str) -> None:
        held = sorted(self.history.pipelines_held)
        if action == "release pipeline" and held:
            pipeline = self.dice.choice(held)
            self._call(action, lambda number, client: self.callers.release_pipeline(number, client, pipeline))
        elif action == "hold pipeline":
            chosen = self.dice.choice(self._evolutions).now.id
            self._call(action, lambda number, client: self.callers.hold_pipeline(number, client, chosen))

    def _operate(self, action: str) -> None:
        runs = [run for run, judge in self.history.judges.items() if judge.ended is None]
        if self.dice.maybe(0.1) or not runs:
            runs = [run for run in self.history.judges if run not in self.history.removed]
        if not runs:
            return
        if action == "send" and self.dice.maybe(0.6):
            runs = [run for run in runs if self.history.judges[run].waiting() is not None] or runs
        if action in ("cancel", "resolve", "hold") and self.dice.maybe(0.3):
            runs = [run for run in runs if self.history.judges[run].unit() is not None] or runs
        if action == "abandon" and self.dice.maybe(0.6):
            runs = [run for run in runs if self._invalid(run)] or runs
        run_id = self.dice.choice(runs)
        method = {
            "cancel": self.callers.cancel,
            "hold": self.callers.hold,
            "release": self.callers.release,
            "retry": self.callers.retry,
            "resolve": self.callers.resolve,
            "abandon": self.callers.abandon,
            "send": self.callers.send,
            "wait for a result": self.callers.result,
        }[action]
        self._call(action, lambda number, client: method(number, client, run_id))

    def cancel_now(self, run_id: str) -> None:
        """A client cancels a run while an append of it is in flight."""
        client = self._client
        if client is not None:
            self.callers.call("cancel in flight", lambda number: self.callers.cancel(number, client, run_id))

    async def _collect(self, _number: int, client: Client) -> None:
        await client.gc(self.dice.delay_s(self.dice.choice((1.0, 60.0))))

    def _invalid(self, run_id: str) -> str:
        """Why a run is invalid; empty if it is not."""
        run = self.history.run(run_id)
        state = run.state if run is not None else None
        return state.reason if state is not None and state.status == "invalid" else ""
