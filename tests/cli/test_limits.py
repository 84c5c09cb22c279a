"""Looking at limits, and at who waits for them [R-11]."""

from __future__ import annotations

import json
from pathlib import Path

from perdure.cli.exits import Exit
from tests.cli.harness import Cli, records

LIMITED = """
from perdure import App, Invocation, Limit, Pipeline, Retry, nothing, step

bank = Limit("bank", key=lambda name: name[0], concurrency=1)
few = Limit("few", in_flight=1)

@step("pay/v1", limits=(bank,), retry=Retry(max_attempts=1))
async def pay(inv: Invocation[str, object]) -> None:
    raise OSError("the bank does not answer")

job: Pipeline[str, object, None] = Pipeline(
    id="job", input=str, deps=object, steps=(pay,), output=nothing, limits=(few,)
)
app = App(job.bind(), store="sqlite:///limited.db")
"""


def test_limits_are_shown_with_who_waits(project: Path, cli: Cli) -> None:
    """R-11: a held run is in flight, and the next one says that it waits for it."""
    (project / "limited.py").write_text(LIMITED, encoding="utf-8")
    assert cli("limits", "--app", "limited:app").code == Exit.STORE
    for name in ("n1", "n2"):
        assert cli("submit", "job", f'"{name}"', "--app", "limited:app").code == Exit.OK
    assert cli("run", "limited:app", "--until-idle").code == Exit.OK
    head, bank, few = cli("limits", "--app", "limited:app").out.splitlines()
    assert head.split() == ["LIMIT", "KEY", "HELD", "WAITING", "OLDEST", "SINCE"]
    assert bank.split()[:6] == ["bank", "n", "0", "of", "1", "0"]
    assert few.split()[:5] == ["few", "1", "of", "1", "1"]
    found = records(cli("limits", "--app", "limited:app", "--json").json()["limits"])
    assert [(use["limit"], use["held"], use["waiting"]) for use in found] == [("bank", 0, 0), ("few", 1, 1)]
    shown = cli("list", "--app", "limited:app").out
    assert "waits for limit 'few'" in shown


def test_a_full_queue_refuses_and_says_what_to_do(project: Path, cli: Cli) -> None:
    """R-11: one submission, and the lines of a file that found no room."""
    (project / "limited.py").write_text(LIMITED.replace("in_flight=1", "in_flight=1, queue=1"), encoding="utf-8")
    for name in ("n1", "n2"):
        assert cli("submit", "job", f'"{name}"', "--app", "limited:app").code == Exit.OK
    refused = cli("submit", "job", '"n3"', "--app", "limited:app")
    assert refused.code == Exit.CONFLICT
    assert "limit 'few' has no room for another run; it lets in 2 that have not ended" in refused.err
    assert "hint: nothing was submitted; `perdure limits` shows who is inside" in refused.err
    (project / "jobs.jsonl").write_text('"n3"\n"n4"\n')
    many = cli("submit", "job", "--many", "jobs.jsonl", "--app", "limited:app")
    assert (many.code, "0 submitted, 2 refused" in many.out) == (Exit.CONFLICT, True)
    one, _ = cli("submit", "job", "--many", "jobs.jsonl", "--app", "limited:app", "--json").out.splitlines()
    assert json.loads(one)["run_id"] is None
    _, few = cli("limits", "--app", "limited:app").out.splitlines()
    assert few.split()[:7] == ["few", "0", "of", "1", "2", "of", "2"]
    assert cli("run", "limited:app", "--until-idle").code == Exit.OK
    _, _, few = cli("limits", "--app", "limited:app").out.splitlines()
    assert few.split()[:7] == ["few", "1", "of", "1", "1", "of", "1"]
    found = records(cli("limits", "--app", "limited:app", "--json").json()["limits"])
    assert [use["queue"] for use in found] == [None, 1]
