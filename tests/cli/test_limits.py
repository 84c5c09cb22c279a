"""Looking at limits, and at who waits for them [R-11]."""

from __future__ import annotations

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
