"""The typed answer of one turn: validated, delivered, kept as a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsm_agent.conversation.effects import FINAL, AnswerChecked, CheckAnswer, OutputSpec, ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.extension import Part
from fsm_agent.fsm.pause_point import TurnInbox
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.output import OutputType, ValidOutput
from fsm_agent.runtime.clock import UsersCode, answer_of
from fsm_agent.runtime.ports import Clock
from fsm_agent.settings import Settings
from fsm_agent.tools import RunContext, Tool, ToolFailure
from fsm_agent.tools.result import text_of_error, words_of
from fsm_agent.tools.signature import KEY


def output_type_of(wanted: Any, settings: Settings) -> OutputType[Any] | None:
    """Return the type of an answer; ``None`` for ``str``, which every answer is. ``wanted`` may be the stored
    specification of a turn. Raises ``ConfigError``."""
    if wanted is None or wanted is str:
        return None
    if isinstance(wanted, OutputSpec):
        return OutputType.again(wanted)
    return OutputType(wanted, None if settings.output_mode == "auto" else settings.output_mode)


def output_type_again(
    stored: OutputSpec | None, given: Any, agents: OutputType[Any] | None, settings: Settings
) -> OutputType[Any] | None:
    """Return the answer type of a resumed turn: the type ``given`` now, else the agent's if the turn was
    begun with it, else the ``stored`` one: its schema, with plain data as values. Raises ``ConfigError`` if
    the given type is not the one that the turn was begun with."""
    if given is not None:
        again = output_type_of(given, settings)
        if _schema(again) != (None if stored is None else dict(stored.schema)):
            was = "a turn without a type" if stored is None else f"the type {stored.name!r}"
            raise ConfigError("output_type is not what the turn was begun with", given, was)
        return again
    if stored is None or _schema(agents) == dict(stored.schema):
        return agents if stored is not None else None
    return OutputType.again(stored)


def _schema(kind: OutputType[Any] | None) -> dict[str, Any] | None:
    return None if kind is None else dict(kind.spec.schema)


class Answers(Part):
    """The answers of one turn. ``scene``: the context for an output function."""

    def __init__(
        self,
        kind: OutputType[Any],
        clock: Clock,
        settings: Settings,
        signals: TurnInbox,
        scene: Callable[[], RunContext[Any]],
    ) -> None:
        self._kind, self._clock, self._scene = kind, clock, scene
        self._settings, self._signals = settings, signals
        self._checked: ValidOutput[Any] | None = None
        super().__init__(
            {CheckAnswer: _let_out},
            (Layer("type of the answer", self._check, (CheckAnswer,)),),
            checks={"answer": True, "output_tool": FINAL},
            opens={"output": kind.spec},
        )

    @property
    def final_tool(self) -> ToolSpec:
        """Return the tool whose arguments are the answer."""
        return self._kind.final_tool

    def partial(self, text: str) -> Any:
        """Return the value of the beginning of an answer, as far as it can be parsed."""
        return self._kind.partial(text)

    async def _check(self, request: CheckAnswer, turn: Any, call_next: Perform) -> AnswerChecked:
        """Check whether the text has the type. A function runs last, after every other check."""
        if not request.typed:
            return await call_next(request)  # type: ignore[no-any-return]
        try:
            read = self._kind.read(request.text)
            checked: AnswerChecked = await call_next(replace(request, text=read.text))
            if checked.blocked or checked.problem:
                return checked
            read = read if checked.text is None else self._kind.read(checked.text)
            self._checked = await self._kind.finish(read, self._perform)
        except ToolFailure as problem:
            return AnswerChecked(words_of(problem))
        return replace(checked, text=None if read.text == request.text else read.text)

    async def value(self, text: str) -> Any:
        """Return the value of the turn's final text, ``None`` if it has another type. A text checked in this
        process is not checked again."""
        if self._checked is not None and self._checked.text == text:
            return self._checked.value
        try:
            return (await self._kind.finish(self._kind.read(text), self._perform)).value
        except ToolFailure:
            return None

    async def _perform(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        scene, settings = self._scene(), self._settings
        given = dict(arguments)
        if tool.signature.keyed:
            given[KEY] = f"{scene.turn_id}:{FINAL}"
        if tool.signature.context:
            given[tool.signature.context] = replace(scene, tool=tool.spec.name)
        limit, poll = settings.tool.batch_timeout, settings.poll.control
        code = UsersCode(f"output function {tool.spec.name}", self._clock, poll, then="")
        work = _call_function(partial(tool.handler, **given))
        ended, problem = await code.within(work, limit, self._signals.event(), here=True)
        if ended is None:
            raise ToolFailure(problem or "it was not looked at: the user interrupted")
        value, failed = ended
        if failed is not None:
            raise failed
        return value


async def _let_out(request: CheckAnswer) -> AnswerChecked:
    """Deliver the answer: there are no guardrails."""
    return AnswerChecked()


async def _call_function(function: Callable[[], Any]) -> tuple[Any, ToolFailure | None]:
    """Return (the result of the function, or its refusal in words for the model)."""
    try:
        return await answer_of(function), None
    except ToolFailure as failure:
        return None, failure
    except ValueError as error:
        return None, ToolFailure(str(error) or text_of_error(error))
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a task would end the loop
        return None, ToolFailure(text_of_error(error))
