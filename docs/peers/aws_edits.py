"""AWS durable functions, in the local runner of its testing library: no AWS, one process, no crash.

The code is exchanged between two invocations, while the execution is suspended in a wait, as a deployment without a
pinned version does.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import edits
from aws_durable_execution_sdk_python import DurableContext, durable_execution
from aws_durable_execution_sdk_python.config import Duration
from aws_durable_execution_sdk_python_testing import DurableFunctionTestRunner

now = edits.BASE


@durable_execution
def order(event: Any, context: DurableContext) -> str:
    """The pipeline as it is deployed now."""
    price: Any = None
    for name in now.steps:
        if name == "pause":
            context.wait(Duration.from_seconds(int(edits.REST)), name="pause")
            continue

        def body(_: Any, name: str = name, price: Any = price) -> Any:
            return edits.perform(name, now, price)

        state = context.step(body, name=edits.name_of(name))
        price = state if name in edits.PRICED else price
    return "ok"


def main() -> None:
    """Every edit, or those named on the command line."""
    global now
    sdk, testing = (importlib.metadata.version(f"aws-durable-execution-sdk-python{part}") for part in ("", "-testing"))
    print(f"aws durable functions, Python SDK {sdk}, testing library {testing}")
    for edit in edits.wanted():
        with tempfile.TemporaryDirectory() as folder:
            calls = Path(folder, "calls")
            os.environ["EDIT_CALLS"] = str(calls)
            now = edits.deployment_of(edit, "before")
            with DurableFunctionTestRunner(handler=order, skip_time=False) as runner:
                run = runner.run_async(input="{}")
                before = edits.rest_at(edit)
                while edits.calls_in(calls) != before:
                    time.sleep(0.1)
                time.sleep(1)
                now = edits.deployment_of(edit, "after")
                try:
                    result = runner.wait_for_result(run, timeout=int(edits.PATIENCE + edits.REST))
                    how = result.status.value + (
                        f": {result.error.type}: {result.error.message}" if result.error else ""
                    )
                except TimeoutError:
                    how = "not ended"
            edits.report(edit, edits.calls_in(calls)[len(before) :], how)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main()
