"""Restate: its server from `RESTATE_BIN`, one service process for each deployment, at the same address.

The server looks for new releases outside; give it a network of its own (`unshare -n`, `ip link set lo up`) to keep it
to this machine. `RESTATE_NEW=1` registers the edit as a new deployment at an address of its own, and keeps the old one
running, which is how Restate wants it to be done.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import edits
import httpx
import hypercorn.asyncio
import hypercorn.config
import restate

NOW = edits.deployment_of(sys.argv[2], sys.argv[1]) if len(sys.argv) == 3 else edits.BASE
order = restate.Workflow("order")


@order.main()
async def run(ctx: restate.WorkflowContext, number: str) -> str:
    """The pipeline as it is deployed in this process."""
    price: Any = None
    for name in NOW.steps:
        if name == "pause":
            await ctx.sleep(timedelta(seconds=edits.REST), name="pause")
            continue

        def body(name: str = name, price: Any = price) -> Any:
            return edits.perform(name, NOW, price)

        state = await ctx.run_typed(edits.name_of(name), body)
        price = state if name in edits.PRICED else price
    return "ok"


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def work(phase: str, edit: str) -> None:
    """Serve one deployment; start the run first, or watch it afterwards."""
    apart = phase == "after" and bool(os.environ.get("RESTATE_NEW"))
    port = free_port() if apart else int(os.environ["SERVICE"])
    if apart:  # ends with this process group
        await asyncio.create_subprocess_exec(sys.executable, __file__, "old", edit)
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    serving = asyncio.create_task(hypercorn.asyncio.serve(restate.app([order]), config))
    await asyncio.sleep(1)
    if phase == "old":
        await serving
    admin, key = os.environ["ADMIN"], "run-" + edit.replace(" ", "-")
    async with httpx.AsyncClient(timeout=30) as http:
        body = {"uri": f"http://127.0.0.1:{port}", "force": not apart, "breaking": True}
        (await http.post(f"{admin}/deployments", json=body)).raise_for_status()
        if phase == "before":
            sent = await http.post(f"{os.environ['INGRESS']}/order/{key}/run/send", json="A-1")
            sent.raise_for_status()
            await serving
        deadline = time.monotonic() + edits.PATIENCE + edits.REST
        row: dict[str, Any] = {}
        query = "select status, completion_result, retry_count, last_failure, last_failure_error_code, "
        query += f"completion_failure from sys_invocation where target_service_key = '{key}'"
        while time.monotonic() < deadline and row.get("status") != "completed":
            await asyncio.sleep(0.3)
            answer = await http.post(f"{admin}/query", json={"query": query}, headers={"accept": "application/json"})
            row = (answer.json()["rows"] or [{}])[0]
        edits.ended(json.dumps({name: value for name, value in row.items() if value not in (None, "")}))
        await asyncio.sleep(5)


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """A server of its own, with its data in a new folder."""
    ingress, admin, node = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "wb") as log:
        env = {
            **os.environ,
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BASE_DIR": f"{folder}/data",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
        }
        process = subprocess.Popen(
            [os.environ["RESTATE_BIN"], "--no-logo"], env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            for _ in range(300):
                try:
                    if httpx.get(f"http://127.0.0.1:{admin}/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
            yield {
                "ADMIN": f"http://127.0.0.1:{admin}",
                "INGRESS": f"http://127.0.0.1:{ingress}",
                "SERVICE": str(free_port()),
            }
        finally:
            edits.stop(process)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("before", "after", "old"):
        asyncio.run(work(sys.argv[1], sys.argv[2]))
    else:
        version = subprocess.run([os.environ["RESTATE_BIN"], "--version"], capture_output=True, text=True, check=True)
        sdk = importlib.metadata.version("restate-sdk")
        how = "a new deployment beside the old one" if os.environ.get("RESTATE_NEW") else "the same address"
        edits.drive(__file__, f"{version.stdout.strip()}, Python SDK {sdk}, {how}", server)
