"""Restate: its server, a service in Python under hypercorn, and callers that wait for results, all on loopback.

`python -m benchmarks.peer_restate FOLDER STEPS`. The server's program is that of the npm package
`@restatedev/restate-server`, in `.tools/restate`; it keeps its data in the folder, with its own defaults.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from benchmarks.children import Part, cpu_of_tree_s, serve
from benchmarks.process import ROOT
from benchmarks.runs import Slice

PATIENCE_S = 30.0


def program() -> Path:
    """The server.

    Raises:
        RuntimeError: it is not installed.
    """
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"@restatedev/restate-server-{sys.platform}-{machine}"
    found = ROOT / ".tools" / "restate" / "node_modules" / package / "bin" / "restate-server"
    if not found.exists():
        raise RuntimeError("restate-server is not installed; `make bench-postgres` installs it with npm")
    return found


def _port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Restate:
    """Server and service, started; `ports` are those of ingress, admin, node and service."""

    def __init__(self, folder: Path) -> None:
        self.ports = [_port() for _ in range(4)]
        ingress, admin, node, service = self.ports
        settings = {
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_BASE_DIR": str(folder / "restate"),
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_ADVERTISED_ADDRESS": f"http://127.0.0.1:{node}",
            "RESTATE_LOG_FILTER": "error",
        }
        hypercorn = [sys.executable, "-m", "hypercorn", "-b", f"127.0.0.1:{service}", "-w", "0", "--log-level", "error"]
        self._processes = [
            _silent([str(program()), "--no-logo"], settings),
            _silent([*hypercorn, "benchmarks.restate_service:app"], {}),
        ]

    def cpu_s(self) -> float:
        """Of both."""
        return sum(cpu_of_tree_s(process.pid) for process in self._processes)

    def stop(self) -> None:
        """End both."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _silent(command: list[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **settings}, stdin=nothing, stdout=nothing, stderr=nothing
    )


async def serve_restate(folder: Path, steps: int) -> None:
    """Call the service through the server."""
    restate = Restate(folder)
    ingress, admin, _, service = restate.ports
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=300)) as session:

            async def call(url: str, body: object) -> int:
                async with session.post(url, json=body) as response:
                    await response.read()
                    return int(response.status)

            async def insist(url: str, body: object) -> None:
                until_s = time.monotonic() + PATIENCE_S
                while True:
                    try:
                        if await call(url, body) < 300:
                            return
                    except aiohttp.ClientError:
                        pass
                    if time.monotonic() > until_s:
                        raise RuntimeError(f"restate does not answer at {url}")
                    await asyncio.sleep(0.1)

            await insist(f"http://127.0.0.1:{admin}/deployments", {"uri": f"http://127.0.0.1:{service}", "force": True})
            run = f"http://127.0.0.1:{ingress}/bench/trivial"
            await insist(run, 1)

            async def measure(runs: int, concurrency: int) -> Part:
                measured = Slice()
                numbers = iter(range(runs))

                async def caller() -> None:
                    for _ in numbers:
                        started = time.perf_counter()
                        if await call(run, steps) >= 300:
                            raise RuntimeError("a run failed")
                        measured.latencies_ms.append((time.perf_counter() - started) * 1e3)

                cpu_s, began = time.process_time() + restate.cpu_s(), time.perf_counter()
                await asyncio.gather(*(caller() for _ in range(concurrency)))
                measured.wall_s = time.perf_counter() - began
                measured.cpu_s = time.process_time() + restate.cpu_s() - cpu_s
                return Part.of(measured, runs)

            await serve(measure)
    finally:
        restate.stop()


if __name__ == "__main__":
    asyncio.run(serve_restate(Path(sys.argv[1]), int(sys.argv[2])))
