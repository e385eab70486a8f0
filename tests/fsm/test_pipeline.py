"""The layers around a request: their order, which of them a type of requests passes, and what is printed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.fsm.runner import Layer, Perform, Pipeline
from fsm_agent.testing import ScriptedModel, text


@dataclass(frozen=True)
class Look:
    at: str


@dataclass(frozen=True)
class Weigh:
    what: str


class Noting:
    """A layer that notes what passes, and marks the reply."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard = name, heard

    async def __call__(self, request: Any, turn: Any, call_next: Perform) -> Any:
        self.heard.append(f"{turn} {self.name} {type(request).__name__}")
        return f"{self.name}({await call_next(request)})"


def looking(kind: type) -> bool:
    return kind is Look


async def handled(request: Any) -> str:
    return type(request).__name__.lower()


def replies(pipeline: Pipeline, *requests: Any) -> list[Any]:
    async def each() -> list[Any]:
        return [await pipeline(request) for request in requests]

    return asyncio.run(each())


def test_a_request_passes_the_layers_that_care_for_its_type_the_first_outermost() -> None:
    heard: list[str] = []
    layers = (
        Layer("all", Noting("all", heard)),
        Layer("scales", Noting("scales", heard), (Weigh,)),
        Layer("words", Noting("words", heard), looking),
    )
    pipeline = Pipeline("t", lambda kind: handled, layers)
    found = replies(pipeline, Look("x"), Weigh("y"), Look("z"))
    assert found == ["all(words(look))", "all(scales(weigh))", "all(words(look))"]
    looked = ["t all Look", "t words Look"]
    assert heard == [*looked, "t all Weigh", "t scales Weigh", *looked]
    assert str(pipeline) == "1. all: every request\n2. scales: Weigh\n3. words: looking\n4. handler"


def test_the_way_of_a_type_is_composed_once() -> None:
    asked: list[type] = []

    def handler_of(kind: type) -> Perform:
        asked.append(kind)
        return handled

    replies(Pipeline(None, handler_of), *[Look("x")] * 5, Weigh("y"), Look("x"))
    assert asked == [Look, Weigh]


def test_a_layer_may_answer_or_pass_on_another_request() -> None:
    async def answers(request: Look, turn: Any, call_next: Perform) -> str:
        return request.at if request.at != "scales" else await call_next(Weigh("it"))

    pipeline = Pipeline(None, lambda kind: handled, [Layer("answers", answers, (Look,))])
    assert replies(pipeline, Look("door"), Look("scales")) == ["door", "weigh"]


def test_a_layer_takes_the_place_of_the_one_of_its_name_while_the_turn_runs() -> None:
    heard: list[str] = []
    first, last = (Layer(name, Noting(name, heard)) for name in ("first", "last"))
    pipeline = Pipeline(
        "t", lambda kind: handled, [first, Layer("between", Noting("nobody", heard), ()), last]
    )
    assert replies(pipeline, Look("x")) == ["first(last(look))"]
    pipeline.put(Layer("between", Noting("someone", heard)))
    assert replies(pipeline, Look("x")) == ["first(someone(last(look)))"]
    assert [layer.name for layer in pipeline.layers] == ["first", "between", "last"]


def test_what_nothing_handles_is_an_error_each_time() -> None:
    pipeline = Pipeline(None, {Look: handled}.__getitem__)
    for _ in range(2):
        with pytest.raises(KeyError):
            replies(pipeline, Weigh("x"))


def test_a_layer_may_answer_what_nothing_handles() -> None:
    async def answers(request: Weigh, turn: Any, call_next: Perform) -> str:
        return f"{request.what} is heavy"

    pipeline = Pipeline(None, {Look: handled}.__getitem__, [Layer("answers", answers)])
    assert replies(pipeline, Weigh("it")) == ["it is heavy"]


def test_the_pipeline_of_an_agents_turn_is_a_list_that_can_be_read(tmp_path: Path) -> None:
    limits = {"limits": {"turn": {"tokens": 10_000}}}
    turn = Agent(ScriptedModel([text("ok")]), home=tmp_path, toolsets=[], settings=limits).start("go")
    quiet = str(turn.pipeline).splitlines()
    assert quiet == [
        "1. approvals: AskApproval", "2. debugger: questions", "3. limits in time: every request",
        "4. limits: CallModel", "5. outcomes: AnswerProgram, RunTool", "6. handler",
    ]  # fmt: skip
    turn.gate.attach(Letting())
    assert str(turn.pipeline).splitlines()[1] == "2. debugger: every request"
    turn.gate.attach(None)
    assert str(turn.pipeline).splitlines() == quiet


class Letting:
    """A debugger that lets everything pass."""

    async def passing(self) -> None: ...

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        return await call_next(request)


def test_a_turn_that_is_dropped_is_gone_at_once(tmp_path: Path) -> None:
    turn = Agent(ScriptedModel([text("ok")]), home=tmp_path, toolsets=[]).start("go")
    asyncio.run(turn.step())
    gate = weakref.ref(turn.gate)
    gc.disable()
    try:
        del turn
        assert gate() is None, "it waits for a search for circles"
    finally:
        gc.enable()
