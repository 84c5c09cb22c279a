"""Names are values: whatever stands in them, no statement reads it as SQL [I-7]."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import App, Invocation, NotFound, Pipeline, Succeeded, nothing, step

EVIL = "x'; DROP TABLE run; --"


@step(EVIL)
async def only(inv: Invocation[str, object]) -> None:
    return None


@pytest.mark.parametrize("name", [EVIL, 'say "no"', "%_\\*?[", "robert\n'); --"])
async def test_names_are_stored_and_found_as_they_are(tmp_path: Path, name: str) -> None:
    pipeline: Pipeline[str, object, None] = Pipeline(id=name, input=str, deps=object, steps=(only,), output=nothing)
    app = App(pipeline.bind(), store=f"sqlite:///{tmp_path}/names.db")
    async with app.engine() as engine:
        run = await engine.submit(pipeline, name, resource=name, tenant=name, annotations={name: name}, actor=name)
        assert isinstance(await run.result(), Succeeded)
        other = await engine.submit(pipeline, "other", resource="%", tenant="other")
        assert isinstance(await other.result(), Succeeded)

        found = await engine.list(pipeline=name, resource=name, tenant=name)
        assert [info.run_id for info in found] == [run.id]
        assert await engine.counts(tenant=name) == {(name, "succeeded"): 1}
        with pytest.raises(NotFound):
            await engine.run(name.strip().replace("\n", " "))
        assert (await engine.verify()).findings == ()
