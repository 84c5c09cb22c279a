"""DBOS Transact on SQLite. `DBOS_PINNED=1` keeps the application version the same over the edit.

`PATCHED=1`, with it, puts the inserted `check` behind `DBOS.patch`, which is how DBOS wants it to be done.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

import edits
from dbos import DBOS, DBOSConfig, SetWorkflowID

HEAD = """
import edits
from dbos import DBOS

@DBOS.workflow()
def order(number):
    price = None
"""


def source(deployment: edits.Deployment) -> str:
    """The workflow as a program: DBOS computes the version of an application from the source of its workflows."""
    lines = [HEAD]
    for name in deployment.steps:
        if name == "pause":
            lines.append(f"    DBOS.sleep({edits.REST})\n")
        else:
            target = "price = " if name in edits.PRICED else ""
            patch = "if DBOS.patch('check'): " if name == "check" and os.environ.get("PATCHED") else ""
            lines.append(f"    {patch}{target}{edits.name_of(name)}({name!r}, price)\n")
    lines.append("    return 'ok'\n")
    return "".join(lines)


def load(deployment: edits.Deployment) -> Any:
    """Write the program, with a step function of each name in it, and import it."""
    path = Path(os.environ["EDIT_DIR"], "order.py")
    path.write_text(source(deployment), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("order", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    for name in {edits.name_of(step) for step in deployment.steps} - {"pause"}:

        def body(step: str, price: object) -> object:
            return edits.perform(step, deployment, price)

        body.__name__ = body.__qualname__ = name
        setattr(module, name, DBOS.step()(body))
    spec.loader.exec_module(module)
    return module


def work(phase: str, edit: str) -> None:
    """Start the run, or recover it."""
    config: DBOSConfig = {
        "name": "orders",
        "system_database_url": f"sqlite:///{os.environ['EDIT_DIR']}/dbos.sqlite",
    }
    if os.environ.get("DBOS_PINNED"):
        config["application_version"] = "1"
    DBOS(config=config)
    module = load(edits.deployment_of(edit, phase))
    DBOS.launch()
    if phase == "before":
        with SetWorkflowID("run-1"):
            DBOS.start_workflow(module.order, "A-1")
        time.sleep(3600)
    deadline = time.monotonic() + edits.PATIENCE
    while (status := DBOS.list_workflows()[0]).status in ("PENDING", "ENQUEUED") and time.monotonic() < deadline:
        time.sleep(0.2)
    what = status.output if status.status == "SUCCESS" else status.error
    where = f" at version {status.app_version[:8]}, deployed {DBOS.application_version[:8]}"
    edits.ended(f"{status.status}: {what!r}" if what is not None else status.status + where)
    time.sleep(5)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("before", "after"):
        work(sys.argv[1], sys.argv[2])
    else:
        pinned = ", version pinned" if os.environ.get("DBOS_PINNED") else ""
        edits.drive(__file__, f"dbos {importlib.metadata.version('dbos')}, SQLite{pinned}")
