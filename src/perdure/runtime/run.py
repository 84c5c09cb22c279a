"""A handle on one run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from perdure.core.durations import Duration
from perdure.core.explain import Explanation
from perdure.define.result import Result
from perdure.ports.joining import CallerConnection
from perdure.runtime.info import RecordedFact, RunInfo

if TYPE_CHECKING:
    from perdure.runtime.client import Client

Out_co = TypeVar("Out_co", covariant=True)
UNSET: Any = object()
"""No value was given; None is one."""


class Run(Generic[Out_co]):
    """A handle on one run; holds no state of its own, so it never goes stale.

    Attributes:
        id: the run's id.
        created: False where `submit` found a live run of equal input and returned that [R-5].
    """

    __slots__ = ("_client", "created", "id", "pipeline")

    def __init__(self, client: Client, run_id: str, pipeline: str, *, created: bool = False) -> None:
        self._client = client
        self.id = run_id
        self.pipeline = pipeline
        self.created = created

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.pipeline!r}>"

    async def result(self, timeout: Duration | None = None) -> Result[Out_co]:
        """Wait for the end and return it.

        Args:
            timeout: seconds or `timedelta`; the run goes on if it is over.

        Raises:
            TimeoutError: the run has not ended by then.
            InvalidRun: the deployed pipeline cannot continue the run; an operator acts [D-3].
            CorruptJournal: the run is quarantined.
            InvalidArgument: the timeout is no duration.
        """
        return cast("Result[Out_co]", await self._client.result(self.id, timeout))

    async def info(self) -> RunInfo:
        """Where the run stands now."""
        return await self._client.info(self.id)

    def watch(self) -> AsyncIterator[RunInfo]:
        """Where the run stands, now and after every change that is noticed, to the end."""
        return self._client.watch(self.id)

    async def cancel(self, *, reason: str = "canceled", actor: str = "") -> None:
        """See `Client.cancel`."""
        await self._client.cancel(self.id, reason=reason, actor=actor)

    async def hold(self, *, reason: str = "operator", note: str = "", actor: str = "") -> None:
        """See `Client.hold`."""
        await self._client.hold(self.id, reason=reason, note=note, actor=actor)

    async def release(self, *, note: str = "", actor: str = "") -> None:
        """See `Client.release`."""
        await self._client.release(self.id, note=note, actor=actor)

    async def retry(self, *, note: str = "", actor: str = "") -> None:
        """See `Client.retry`."""
        await self._client.retry(self.id, note=note, actor=actor)

    async def resolve(
        self,
        step: str | None = None,
        *,
        value: object = UNSET,
        skip: bool = False,
        fail: str | None = None,
        note: str = "",
        actor: str = "",
    ) -> None:
        """See `Client.resolve`."""
        await self._client.resolve(self.id, step, value=value, skip=skip, fail=fail, note=note, actor=actor)

    async def abandon(self, *, note: str = "", actor: str = "", force: bool = False) -> None:
        """See `Client.abandon`."""
        await self._client.abandon(self.id, note=note, actor=actor, force=force)

    async def prioritize(self, priority: int, *, note: str = "", actor: str = "") -> None:
        """See `Client.prioritize`."""
        await self._client.prioritize(self.id, priority, note=note, actor=actor)

    async def send(
        self,
        name: str,
        payload: object = None,
        *,
        key: str = "",
        actor: str = "",
        connection: CallerConnection | None = None,
    ) -> bool:
        """See `Client.send`."""
        return await self._client.send(self.id, name, payload, key=key, actor=actor, connection=connection)

    async def explain(self) -> Explanation:
        """See `Client.explain`."""
        return await self._client.explain(self.id)

    async def journal(self) -> list[RecordedFact]:
        """See `Client.journal`."""
        return await self._client.journal(self.id)
