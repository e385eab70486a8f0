"""The answer of one turn that has to be of a type: checked, let out, kept as a value."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fsm_agent.composition.services import Services
from fsm_agent.conversation.effects import FINAL, AnswerChecked, Checks, OutputSpec, ToolSpec
from fsm_agent.errors import ConfigError
from fsm_agent.output import OutputType, ValidOutput
from fsm_agent.runtime.deadline import UsersCode, answer_of
from fsm_agent.settings.model import Settings
from fsm_agent.tools import RunContext, Tool, ToolFailure
from fsm_agent.tools.result import text_of_error, words_of
from fsm_agent.tools.signature import KEY

LetOut = Callable[[str], Awaitable[AnswerChecked]]
"""Shows an answer to those who may refuse or change it."""


def output_type_of(wanted: Any, settings: Settings) -> OutputType[Any] | None:
    """Return what an answer has to be; ``None`` for ``str``, which every answer is. ``wanted`` may be what
    is stored of a turn. Raises ``ConfigError``."""
    if wanted is None or wanted is str:
        return None
    if isinstance(wanted, OutputSpec):
        return OutputType.again(wanted)
    return OutputType(wanted, None if settings.output_mode == "auto" else settings.output_mode)


def output_type_again(
    stored: OutputSpec | None, given: Any, agents: OutputType[Any] | None, settings: Settings
) -> OutputType[Any] | None:
    """Return what the answer of a turn has to be that is gone on with: what is ``given`` now, else the
    agent's if the turn was begun with it, else what is ``stored`` of it: its schema, and plain data for
    values. Raises ``ConfigError`` for what is given and is another type than the turn was begun with."""
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


class Answers:
    """The answers of one turn. ``scene``: what an output function can know of it."""

    def __init__(
        self, kind: OutputType[Any], services: Services, scene: Callable[[], RunContext[Any]]
    ) -> None:
        self._kind, self._services, self._scene = kind, services, scene
        self._checked: ValidOutput[Any] | None = None

    @property
    def spec(self) -> OutputSpec:
        """Return what the turn knows of the type."""
        return self._kind.spec

    @property
    def final_tool(self) -> ToolSpec:
        """Return the tool whose arguments are the answer."""
        return self._kind.final_tool

    def checks(self, others: Checks) -> Checks:
        """Return what the turn is to ask, besides what it asks already."""
        return replace(others, answer=True, output_tool=FINAL)

    def partial(self, text: str) -> Any:
        """Return what can be made of the beginning of an answer."""
        return self._kind.partial(text)

    async def check(self, text: str, let_out: LetOut) -> AnswerChecked:
        """Is this text of the type? A function is asked last, when nobody else refuses."""
        try:
            read = self._kind.read(text)
            checked = await let_out(read.text)
            if checked.blocked or checked.problem:
                return checked
            read = read if checked.text is None else self._kind.read(checked.text)
            self._checked = await self._kind.finished(read, self._perform)
        except ToolFailure as problem:
            return AnswerChecked(words_of(problem))
        return replace(checked, text=None if read.text == text else read.text)

    async def value(self, text: str) -> Any:
        """Return the value of the text that the turn ended with, ``None`` when that is of another type. What
        was checked in this process is not checked again."""
        if self._checked is not None and self._checked.text == text:
            return self._checked.value
        try:
            return (await self._kind.finished(self._kind.read(text), self._perform)).value
        except ToolFailure:
            return None

    async def _perform(self, tool: Tool, arguments: Mapping[str, Any]) -> Any:
        services, scene = self._services, self._scene()
        given = dict(arguments)
        if tool.signature.keyed:
            given[KEY] = f"{scene.turn_id}:{FINAL}"
        if tool.signature.context:
            given[tool.signature.context] = replace(scene, tool=tool.spec.name)
        limit, poll = services.settings.tool.batch_timeout, services.settings.poll.control
        code = UsersCode(f"output function {tool.spec.name}", services.clock, poll, then="")
        work = _contained(partial(tool.handler, **given))
        made, problem = await code.within(work, limit, services.signals.event(), here=True)
        if made is None:
            raise ToolFailure(problem or "it was not looked at: the user interrupted")
        value, failed = made
        if failed is not None:
            raise failed
        return value


async def _contained(function: Callable[[], Any]) -> tuple[Any, ToolFailure | None]:
    """(what the function returns, or its refusal in words for the model)."""
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
