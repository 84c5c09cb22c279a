"""`AwaitRuns`: a step that waits until other runs have ended [R-13]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

from perdure.codec.json import AnyCodec, codec_of
from perdure.core.durations import Duration
from perdure.core.plan import Opening
from perdure.core.waits import AwaitedRun
from perdure.define.decorator import check_options
from perdure.define.functions import AnyFunction, check_pure
from perdure.define.invocation import Invocation, PureInvocation
from perdure.define.signals import UnusableOpening
from perdure.define.sleep import nothing_called, waiting_us
from perdure.define.step import D_contra, In_contra, Need, Step
from perdure.errors import DefinitionError

MOST_RUNS = 10_000


class AwaitRuns(Step[In_contra, D_contra, tuple[AwaitedRun, ...]]):
    """A step that waits for runs that others submitted, whatever their pipelines; its state says how they ended.

    Meanwhile the run holds no worker and no place, and survives restarts. A run that does not exist, or has ended by
    then, does not keep it waiting. Runs that would wait for each other in a circle: the wait that closes it fails, with
    reason `await-cycle`. How they end is no failure of this step: the next one reads `inv[step]`, and decides.

    Args:
        id: as of a step.
        runs: a pure function that names them; called once, when the run comes to the step [B-20].
        mode: wait for `all`, or for `any` of them.
        timeout: how long to wait, seconds or `timedelta`; then the step fails with reason `await-timeout` [B-8].
        on_timeout: `fail`, or `go-on` with those that have ended; the others have status `live`.
        on_cancel: a cancel of this run leaves the others alone, or asks them to `cancel`, too.
        when: as of a step; false: the run does not wait.
        needs: what `runs` and `when` read.

    Raises:
        DefinitionError: it could not work; says why.
    """

    __slots__ = ("_goes_on", "_mode", "_runs", "cascades", "timeout_us")

    def __init__(
        self,
        id: str,
        *,
        runs: Callable[[Invocation[In_contra, D_contra]], Sequence[str]],
        mode: Literal["all", "any"] = "all",
        timeout: Duration | None = None,
        on_timeout: Literal["fail", "go-on"] = "fail",
        on_cancel: Literal["leave", "cancel"] = "leave",
        when: Callable[[Invocation[In_contra, D_contra]], bool] | None = None,
        needs: Sequence[Need] = (),
    ) -> None:
        checked = check_options(id, when=cast("AnyFunction | None", when), needs=needs)
        where = f"step {id!r}"
        check_pure(f"{where}: runs", runs, named=False)
        for word, value, words in (
            ("mode", mode, ("all", "any")),
            ("on_timeout", on_timeout, ("fail", "go-on")),
            ("on_cancel", on_cancel, ("leave", "cancel")),
        ):
            if value not in words:
                raise DefinitionError(f"{where}: {word} must be {words[0]!r} or {words[1]!r}, not {value!r}")
        super().__init__(handler=nothing_called, is_async=False, shape="runs", **checked)
        self.doc = ""
        self._runs: AnyFunction = runs
        self._mode = mode
        self._goes_on = on_timeout == "go-on"
        self.cascades = on_cancel == "cancel"
        self.timeout_us = 0 if timeout is None else waiting_us(f"{where}: timeout", timeout)

    def _find_codec(self) -> AnyCodec:
        return codec_of(tuple[AwaitedRun, ...])

    def opening(self, inv: PureInvocation[In_contra, D_contra], /) -> Opening:
        """See base."""
        found: object = self._runs(inv)
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise inv.unusable(UnusableOpening(f"the runs of step {self.id!r} are {found!r}, not run ids"[:500]))
        ids = tuple(dict.fromkeys(cast("Sequence[object]", found)))
        strange = next((each for each in ids if not isinstance(each, str) or not each), None)
        if strange is not None or len(ids) > MOST_RUNS:
            problem = f"more than {MOST_RUNS:,}" if strange is None else f"{strange!r} is no run id"
            raise inv.unusable(UnusableOpening(f"the runs of step {self.id!r}: {problem}"[:500]))
        need = min(1, len(ids)) if self._mode == "any" else len(ids)
        return Opening(self.timeout_us, cast("tuple[str, ...]", ids), need)

    def timeout_state(self) -> bytes | None:
        """See base; the state itself is made of the runs."""
        return b"null" if self._goes_on else None

    def __repr__(self) -> str:
        return f"<{'retired ' if self.retired else ''}await {self.id!r} of runs>"
