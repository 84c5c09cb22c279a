"""Runs that a run under test waits for: their pipelines, or pipelines that do what a script says instead."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, cast

from msgspec import Raw

from perdure.codec.json import codec_of
from perdure.core.facts import RunSubmitted
from perdure.core.projection import Projection
from perdure.core.reducer import fold
from perdure.define.child import ChildStep
from perdure.define.decorator import step
from perdure.define.invocation import Invocation
from perdure.define.pipeline import AnyPipeline, Bound, Pipeline
from perdure.ports.store import Store
from perdure.runtime.appending import seal
from perdure.runtime.indexing import new_run, submitted_state
from perdure.testing.clock import VirtualSystem
from perdure.testing.evolve import Each

_OTHER = "evolve/other"


class Script:
    """Results one after the other, by name; an `Each` has one for each time, the last one for all further times."""

    def __init__(self, results: Mapping[str, object]) -> None:
        self._results = results
        self._used: dict[str, int] = {}

    def has(self, name: str) -> bool:
        """Whether there is one more: a plain value is one, an `Each` has as many as it was given."""
        result = self._results.get(name, _NOTHING)
        if result is _NOTHING:
            return False
        return self._used.get(name, 0) < (len(result.results) if isinstance(result, Each) else 1)

    def take(self, name: str) -> object:
        """The next one."""
        result = self._results[name]
        used = self._used[name] = self._used.get(name, 0) + 1
        return result.results[min(used, len(result.results)) - 1] if isinstance(result, Each) else result


_NOTHING = object()


def come_true(result: object) -> object:
    """Return a scripted value, or raise a scripted exception."""
    if isinstance(result, BaseException) or (inspect.isclass(result) and issubclass(result, BaseException)):
        raise result
    return result


def children_of(pipelines: Iterable[AnyPipeline]) -> dict[str, AnyPipeline]:
    """The pipelines of all child runs that these may have, and those of theirs, by id."""
    found: dict[str, AnyPipeline] = {}
    waiting = list(pipelines)
    while waiting:
        for definition in waiting.pop().steps.values():
            child = definition.child if isinstance(definition, ChildStep) else None
            if child is not None and child.id not in found:
                found[child.id] = child
                waiting.append(child)
    return found


def scripted(pipeline: AnyPipeline, script: Script) -> AnyPipeline:
    """A pipeline of the same id, input and output, each of whose runs ends as the script says."""
    return _answering(pipeline.id, pipeline.input_codec.type, pipeline.output_codec.type, script, pipeline.id, pipeline)


def _answering(
    id: str, input: object, output: object, script: Script, name: str, like: AnyPipeline | None = None
) -> AnyPipeline:
    async def answer(inv: Invocation[Any, Any]) -> object:
        return come_true(script.take(name))

    def said(inv: Invocation[Any, Any]) -> object:
        return inv[only]

    answer.__annotations__["return"] = said.__annotations__["return"] = output
    only: Any = cast("Any", step)(_OTHER)(answer)
    others = {} if like is None else {"resource": like.resource, "slot": like.slot}
    make: Any = Pipeline
    return cast("AnyPipeline", make(id=id, input=input, deps=object, steps=(only,), output=said, **others))


class Others:
    """Everything that a run under test may wait for.

    Args:
        pipelines: all versions.
        deps: what handlers of child runs find.
        children: how child runs of a pipeline end, by its id; others run as they are.
        runs: how other runs end, by run id.
    """

    def __init__(
        self,
        pipelines: Iterable[AnyPipeline],
        deps: object,
        children: Mapping[str, object],
        runs: Mapping[str, object],
    ) -> None:
        self._deps = deps
        self._script = Script({**children, **{_other(run_id): result for run_id, result in runs.items()}})
        known = children_of(pipelines)
        self._runs = tuple(runs)
        self.pipelines: dict[str, AnyPipeline] = {
            id: scripted(pipeline, self._script) if id in children else pipeline for id, pipeline in known.items()
        }
        for run_id, result in runs.items():
            first = result.results[0] if isinstance(result, Each) else result
            failing = isinstance(first, BaseException) or inspect.isclass(first)
            made = type(None) if failing else type(first)
            id = _other(run_id)
            self.pipelines[id] = _answering(id, None, made, self._script, id)

    def bound(self) -> list[Bound]:
        """For the app."""
        deps = self._deps
        return [pipeline.bind(lambda: nullcontext(deps)) for pipeline in self.pipelines.values()]

    async def submit(self, store: Store, system: VirtualSystem) -> None:
        """The other runs exist from now on, under the ids they were given."""
        for run_id in self._runs:
            now_us, p = system.now_us(), Projection(run_id)
            digest = codec_of(None).digest_of(b"null").hex()
            submitted = RunSubmitted(run_id, _other(run_id), Raw(b"null"), digest, run_id)
            fold(p, submitted, now_us)
            append = seal(p, [submitted], now_us, system.append_id(), 0)
            append.new = new_run(submitted, now_us)
            append.index = submitted_state(p, now_us)
            await store.append(append)


def _other(run_id: str) -> str:
    return f"{_OTHER}/{run_id}"
