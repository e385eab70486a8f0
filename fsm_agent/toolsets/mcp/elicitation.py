"""Questions of an MCP server to the user, asked as questions of the agent (``clarify``). Independent of the
SDK."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from fsm_agent.approvals.question import visible
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import ClarifyAsked
from fsm_agent.support.texts import shorten
from fsm_agent.toolsets.mcp.config import HERE

MOST_ASKED = 10
"""Maximum questions during one call; further ones are declined."""
MOST_FIELDS = 20
MOST_TRIES = 3
"""Invalid answers to one field after which the form counts as dismissed."""
MAX_MESSAGE = 2_000
MAX_WORDS = 300
"""Maximum characters of a field's description."""
MAX_CHOICES, MAX_CHOICE = 4, 200
"""Maximum choices of a question, and characters of one."""
_CHECKED = ("type", "minLength", "maxLength", "format", "minimum", "maximum", "minItems", "maxItems")
"""Keywords that answers are checked against; an untrusted pattern is never run."""
DECLINE, FILL_IN, DEFAULTS, ACCEPT = "Decline", "Fill it in", "Send the defaults", "Accept"
OPENED, LEAVE_OUT = "I opened the page", "Leave it out"

Action = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True)
class ServerQuestion:
    """A form with a ``schema``, or a page to open in a browser (``url``)."""

    message: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """The user's answer. ``content``: of an accepted form, by field name."""

    action: Action
    content: Mapping[str, Any] | None = None


DECLINED, DISMISSED = PersonAnswer("decline"), PersonAnswer("cancel")
Asker = Callable[[ServerQuestion], Awaitable[PersonAnswer]]
"""Asks the user during one call."""


class Elicitation:
    """Asks the agent's user questions of its MCP servers."""

    def __init__(self, callbacks: Callbacks, timeout: float) -> None:
        self._callbacks, self._timeout = callbacks, timeout

    @property
    def possible(self) -> bool:
        """Return whether there is a user to ask."""
        return self._callbacks.has("clarify")

    def asker(self, server: str) -> Asker:
        """Return a function, callable from any event loop, that asks in the loop and context of this call:
        the callbacks belong to the loop of the turn."""
        loop, context, asked = asyncio.get_running_loop(), contextvars.copy_context(), 0

        async def within(question: ServerQuestion) -> PersonAnswer:
            return await loop.create_task(self._answer(server, question), context=context)

        async def ask(question: ServerQuestion) -> PersonAnswer:
            nonlocal asked
            asked += 1
            if asked > MOST_ASKED:
                return DECLINED
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(within(question), loop))

        return ask

    async def _answer(self, server: str, question: ServerQuestion) -> PersonAnswer:
        try:
            async with asyncio.timeout(self._timeout):
                if question.url:
                    return await self._page(server, question)
                return await self._form(server, question)
        except TimeoutError:
            return DISMISSED

    async def _page(self, server: str, question: ServerQuestion) -> PersonAnswer:
        """Ask the user to open the page. This program never opens it, so the full address is shown."""
        parts = urlsplit(question.url)
        if not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in HERE)):
            return DECLINED
        address = visible(question.url, lines=False)
        words = f"{_opening(server, question.message)}\nOpen this page of {parts.hostname}: {address}"
        answer = await self._ask(words, [OPENED, DECLINE])
        return PersonAnswer("accept") if answer == OPENED else _refusal(answer)

    async def _form(self, server: str, question: ServerQuestion) -> PersonAnswer:
        fields = list(_fields(question.schema))
        if len(fields) > MOST_FIELDS:
            return DECLINED
        opening = _opening(server, question.message)
        if not fields:
            answer = await self._ask(opening, [ACCEPT, DECLINE])
            return PersonAnswer("accept", {}) if answer == ACCEPT else _refusal(answer)
        if len(fields) > 1 or fields[0].default is not None:
            defaults = (
                [DEFAULTS] if all(one.default is not None or not one.required for one in fields) else []
            )
            listed = "\n".join(f"- {one.words()}" for one in fields)
            answer = await self._ask(f"{opening}\n{listed}", [*defaults, FILL_IN, DECLINE])
            if answer == DEFAULTS and defaults:
                return PersonAnswer(
                    "accept", {one.name: one.default for one in fields if one.default is not None}
                )
            if answer != FILL_IN:
                return _refusal(answer)
            opening = ""
        content: dict[str, Any] = {}
        for one in fields:
            value = await self._value(one, opening)
            if isinstance(value, PersonAnswer):
                return value
            if value is not None:
                content[one.name] = value
        return PersonAnswer("accept", content)

    async def _value(self, one: FormField, opening: str) -> Any:
        """Return the user's value for a field, ``None`` to leave it out, or how the form ends without it."""
        words = "\n".join(filter(None, (opening, one.words())))
        problem = ""
        for _ in range(MOST_TRIES):
            answer = await self._ask(f"{problem}{words}", one.choices())
            if answer is None or answer == DECLINE:
                return _refusal(answer)
            if answer == LEAVE_OUT and not one.required:
                return None
            try:
                return one.read(answer)
            except ValueError as error:
                problem = f"“{shorten(visible(answer, lines=False), 80)}” cannot be used: {error}\n"
        return DISMISSED

    async def _ask(self, question: str, choices: list[str]) -> str | None:
        self._callbacks.publish(ClarifyAsked(question, choices))
        answer = await self._callbacks.ask_text("clarify", question, choices)
        return answer.strip() if answer and answer.strip() else None


def _opening(server: str, message: str) -> str:
    return f"The MCP server {server} asks: {visible(shorten(message, MAX_MESSAGE))}"


def _refusal(answer: str | None) -> PersonAnswer:
    """Map an answer to decline or dismiss: words outside the choices are not consent either."""
    return DECLINED if answer == DECLINE else DISMISSED


# The fields of a form, which is always flat in the protocol.


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form. ``options``: the allowed values, each with its words; empty if any value of the type
    is allowed."""

    name: str
    schema: Mapping[str, Any]
    required: bool
    options: Mapping[str, str] = field(default_factory=dict)
    several: bool = False

    @property
    def default(self) -> Any:
        """Return the server's default, ``None`` without a valid one."""
        value = self.schema.get("default")
        plain = isinstance(value, str | int | float) or (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        )
        return value if plain else None

    def words(self) -> str:
        """Describe the field and the expected form of its value."""
        title, about = (str(self.schema.get(key) or "") for key in ("title", "description"))
        kind = "one or more of" if self.several else "one of" if self.options else self.schema.get("type", "")
        listed = ", ".join(
            value if words == value else f"{value} ({words})" for value, words in self.options.items()
        )
        facts = [
            f"{kind} {listed}".strip(),
            str(self.schema.get("format") or ""),
            "" if self.required else "may be left out",
            "" if self.default is None else f"default {_text(self.default)}",
        ]
        label = ": ".join(filter(None, (title or self.name, about)))
        line = f"{shorten(label, MAX_WORDS)} ({shorten(', '.join(filter(None, facts)), 2 * MAX_WORDS)})"
        return visible(line, lines=False)

    def choices(self) -> list[str]:
        """Return answers to choose from; any other valid one is accepted too."""
        values = list(self.options) if not self.several else []
        if self.schema.get("type") == "boolean":
            values = ["yes", "no"]
        first = [_text(self.default)] if self.default is not None else []
        last = [DECLINE] if self.required else [LEAVE_OUT, DECLINE]
        more = values if len(values) + len(last) <= MAX_CHOICES else []
        offered = [one for one in dict.fromkeys((*first, *more)) if _is_shown_whole(one)]
        return [*offered[: MAX_CHOICES - len(last)], *last]

    def read(self, answer: str) -> Any:
        """Parse an answer. Raises ``ValueError`` that says what is allowed."""
        value = self._parse(answer)
        from jsonschema import Draft202012Validator, ValidationError

        checked = {key: part for key, part in self.schema.items() if key in _CHECKED}
        try:
            Draft202012Validator(checked, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)
        except ValidationError as error:
            raise ValueError(shorten(error.message, MAX_WORDS)) from None
        return value

    def _parse(self, answer: str) -> Any:
        if self.several:
            return [self._option(part.strip()) for part in answer.split(",")]
        if self.options:
            return self._option(answer)
        match self.schema.get("type"):
            case "boolean":
                known = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
                if answer.lower() not in known:
                    raise ValueError("allowed: yes or no")
                return known[answer.lower()]
            case "integer":
                return _number(answer, int)
            case "number":
                return _number(answer, float)
            case _:
                return answer

    def _option(self, answer: str) -> str:
        for value, words in self.options.items():
            if answer.lower() in (value.lower(), words.lower()):
                return value
        raise ValueError(f"allowed: {', '.join(self.options)}")


def _is_shown_whole(choice: str) -> bool:
    return bool(choice) and len(choice) <= MAX_CHOICE and visible(choice, lines=False) == choice


def _number(answer: str, kind: type[int | float]) -> int | float:
    try:
        return kind(answer)
    except ValueError:
        allowed = "a whole number" if kind is int else "a number"
        raise ValueError(f"allowed: {allowed}") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _fields(schema: Mapping[str, Any]) -> Iterator[FormField]:
    properties = schema.get("properties")
    required = schema.get("required")
    for name, part in properties.items() if isinstance(properties, Mapping) else ():
        one: Mapping[str, Any] = part if isinstance(part, Mapping) else {}
        several = one.get("type") == "array"
        inner = one.get("items") if several else one
        options = _options(inner) if isinstance(inner, Mapping) else {}
        wanted = isinstance(required, list) and name in required
        yield FormField(str(name), one, wanted, options, several)


def _options(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a choice with their words, in any form that the protocol has had."""
    for key in ("oneOf", "anyOf"):
        if isinstance(listed := schema.get(key), list):
            return {
                str(one["const"]): str(one.get("title") or one["const"]) for one in listed if "const" in one
            }
    values = schema.get("enum")
    if not isinstance(values, list):
        return {}
    names = schema.get("enumNames")
    names = names if isinstance(names, list) and len(names) == len(values) else values
    return {str(value): str(name) for value, name in zip(values, names, strict=True)}
