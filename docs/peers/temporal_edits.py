"""Temporal: its development server from the `temporal` binary, one worker process for each deployment.

`PATCHED=1` puts the inserted `check` behind `workflow.patched`, which is how Temporal wants it to be done.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import edits
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker


@dataclass
class Price:
    """What `quote` returns once the price is a record."""

    cents: int


NOW = edits.deployment_of(sys.argv[2], sys.argv[1]) if len(sys.argv) == 3 else edits.BASE


def step_of(name: str) -> Any:
    """An activity of this name."""

    @activity.defn(name=name)
    async def body(step: str, price: Any) -> Any:
        return edits.perform(step, NOW, price)

    return body


@workflow.defn(name="order")
class Order:
    """The pipeline as it is deployed in this process."""

    @workflow.run
    async def run(self, number: str) -> str:
        price: Any = None
        for name in NOW.steps:
            if name == "pause":
                await asyncio.sleep(edits.REST)
                continue
            if name == "check" and os.environ.get("PATCHED") and not workflow.patched("check"):
                continue
            kind = (Price if NOW.record else int) if name in edits.PRICED else None
            state = await workflow.execute_activity(
                edits.name_of(name),
                args=[name, {"cents": price.cents} if isinstance(price, Price) else price],
                start_to_close_timeout=timedelta(seconds=10),
                result_type=kind,
            )
            price = state if name in edits.PRICED else price
        return "ok"


async def failure_of(client: Client, run: str) -> str:
    """Why the run does not go on: the last failed workflow task in its history."""
    found = "no workflow task failed"
    async for event in client.get_workflow_handle(run).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            found = event.workflow_task_failed_event_attributes.failure.message
    return found


async def replay(client: Client, run: str) -> str:
    """What a replay of the recorded history would have said before the deployment."""
    history = await client.get_workflow_handle(run).fetch_history()
    result = await Replayer(workflows=[Order], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(
        history, raise_on_replay_failure=False
    )
    return "replay says: " + (f"{result.replay_failure}" if result.replay_failure else "fine")


async def work(phase: str, edit: str) -> None:
    """Be the worker of one deployment; start the run first, or watch it afterwards."""
    client = await Client.connect(os.environ["TEMPORAL"])
    run = "run-" + edit.replace(" ", "-")
    replayed = "" if phase == "before" else await replay(client, run)
    names = {edits.name_of(step) for step in NOW.steps} - {"pause"}
    async with Worker(
        client,
        task_queue=run,
        workflows=[Order],
        activities=[step_of(name) for name in sorted(names)],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        if phase == "before":
            await client.start_workflow("order", "A-1", id=run, task_queue=run)
            await asyncio.sleep(3600)
        deadline = time.monotonic() + edits.PATIENCE + edits.REST
        while time.monotonic() < deadline:
            told = await client.get_workflow_handle(run).describe()
            if told.status != WorkflowExecutionStatus.RUNNING:
                break
            await asyncio.sleep(0.2)
        status = told.status.name if told.status else "?"
        why = "" if status == "COMPLETED" else f": {await failure_of(client, run)}"
        edits.ended(f"{status}{why} | {replayed}")
        await asyncio.sleep(5)


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """The development server, on a free port, in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        command = [str(Path(sys.executable).parent / "temporal"), "server", "start-dev", "--headless"]
        command += ["--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            for _ in range(300):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            time.sleep(3)
            yield {"TEMPORAL": f"127.0.0.1:{port}"}
        finally:
            edits.stop(process)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    if len(sys.argv) == 3 and sys.argv[1] in ("before", "after"):
        asyncio.run(work(sys.argv[1], sys.argv[2]))
    else:
        edits.drive(__file__, f"temporal, Python SDK {importlib.metadata.version('temporalio')}", server)
