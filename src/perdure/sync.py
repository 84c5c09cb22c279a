"""A small blocking client for programs that are not async [I-1].

```python
from perdure.sync import connect

with connect(app) as client:
    run = client.submit(payout, PayoutInput("7", 12_500))
    print(client.result(run.id))
```
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, Never, TypeVar

from perdure.app import App
from perdure.app import connect as connect_async
from perdure.core.durations import Duration
from perdure.define.pipeline import Pipeline
from perdure.define.result import Result
from perdure.ports.joining import CallerConnection
from perdure.runtime.client import Client
from perdure.runtime.info import RunInfo
from perdure.runtime.refusing import OnBusy
from perdure.runtime.run import Run

T = TypeVar("T")
In = TypeVar("In")
Out_co = TypeVar("Out_co", covariant=True)


@contextmanager
def connect(target: App | str) -> Generator[SyncClient]:
    """A blocking client of an app's store, or of a store URL; an event loop runs in a thread of its own meanwhile.

    Raises:
        StoreUnusable: the store is not one that this release can use.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="perdure-sync", daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def enter() -> Client:
        return await stack.enter_async_context(target.client() if isinstance(target, App) else connect_async(target))

    def wait(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    try:
        yield SyncClient(wait(enter()), loop)
    finally:
        wait(stack.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class SyncClient:
    """Blocking forms of what `Client` does most; `call` blocks on anything else. Safe to use from several threads."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Block on a coroutine of the client: `sync.call(sync.client.explain(run_id))`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def submit(
        self,
        pipeline: Pipeline[In, Never, Out_co],
        input: In,
        *,
        resource: str | None = None,
        tenant: str = "default",
        delay: Duration | None = None,
        start_at: datetime | None = None,
        deadline: datetime | timedelta | None = None,
        annotations: Mapping[str, str] | None = None,
        actor: str = "",
        on_busy: OnBusy | None = None,
        idempotency_key: str | None = None,
        key_window: Duration | None = None,
        priority: int | None = None,
        connection: CallerConnection | None = None,
    ) -> Run[Out_co]:
        """See `Client.submit`; the connection is one that blocks."""
        return self.call(
            self.client.submit(
                pipeline,
                input,
                resource=resource,
                tenant=tenant,
                delay=delay,
                start_at=start_at,
                deadline=deadline,
                annotations=annotations,
                actor=actor,
                on_busy=on_busy,
                idempotency_key=idempotency_key,
                key_window=key_window,
                priority=priority,
                connection=connection,
            )
        )

    def result(self, run_id: str, timeout: Duration | None = None) -> Result[object]:
        """See `Run.result`."""
        return self.call(self.client.result(run_id, timeout))

    def info(self, run_id: str) -> RunInfo:
        """See `Client.info`."""
        return self.call(self.client.info(run_id))

    def cancel(self, run_id: str, *, reason: str = "canceled", actor: str = "") -> None:
        """See `Client.cancel`."""
        self.call(self.client.cancel(run_id, reason=reason, actor=actor))

    def send(
        self,
        run_id: str,
        name: str,
        payload: object = None,
        *,
        key: str = "",
        actor: str = "",
        connection: CallerConnection | None = None,
    ) -> bool:
        """See `Client.send`; the connection is one that blocks."""
        return self.call(self.client.send(run_id, name, payload, key=key, actor=actor, connection=connection))
