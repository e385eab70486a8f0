"""The feature ``callbacks``: those that may change the outcome of a call and the answer that is delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fsm_agent.conversation.effects import AnswerProgram, RunTool, ToolOutcome, Transform, Transformed
from fsm_agent.extension import Extension, Here, Part
from fsm_agent.features.ground import Ground
from fsm_agent.fsm.pipeline import Layer, Perform
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import ToolComplete, ToolProgress
from fsm_agent.support.texts import one_line


class CallbackCalls(Extension):
    """Of one agent."""

    name = "callbacks"

    def __init__(self, ground: Ground) -> None:
        self._callbacks = ground.callbacks

    def in_turn(self, here: Here) -> Part:
        outcomes = Layer("outcomes", partial(self._outcome, here), (RunTool, AnswerProgram))
        return Part({Transform: self._transform}, (outcomes,))

    async def _outcome(
        self, here: Here, request: RunTool | AnswerProgram, turn: Any, call_next: Perform
    ) -> Any:
        """Let the callback ``after_tool`` change the outcome of a call, and publish it; one that fails leaves
        it as it is. A program that asks for something has no outcome yet, and neither has a call whose result
        comes later."""
        callbacks, call = self._callbacks, here.call_of(request)
        ended = await call_next(request)
        if call is None or not isinstance(ended, ToolOutcome):
            return ended
        outcome, arguments = ended, dict(call.arguments)
        if callbacks.has("after_tool"):
            values = (call.name, dict(arguments), outcome.text, outcome.status)
            said = await callbacks.ask_text("after_tool", *values)
            outcome = outcome if said is None else replace(outcome, text=said)
        callbacks.publish(ToolComplete(call.call_id, call.name, arguments, outcome.text, outcome.status))
        publish_progress(callbacks, "completed", call, lambda: outcome.text)
        return outcome

    async def _transform(self, request: Transform) -> Transformed:
        answer = await self._callbacks.ask_text("transform", request.text)
        return Transformed(None if answer == request.text else answer)


def publish_progress(callbacks: Callbacks, what: str, call: RunTool, preview: Callable[[], str]) -> None:
    """Publish how far a call is."""
    if callbacks.hears(ToolProgress):
        callbacks.publish(ToolProgress(what, call.name, one_line(preview(), 120)))
