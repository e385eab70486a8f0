"""Requests of extensions at named points: collected when an agent is made, performed in its turns.

A turn keeps the requests in its first snapshot and asks for them wherever it continues. The journal, the
debugger, and other layers see each as an ``AskExtension``.
"""

# The requests are data, and the journal knows one type for all of them. With a type per extension, a journal
# could not be read without the extension. No reply chooses an event: the proofs would depend on it.

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from fsm_agent.conversation.effects import AskExtension, ExtensionAnswer, Point
from fsm_agent.errors import ConfigError, near
from fsm_agent.extension import Extension, Here, Part, words_of
from fsm_agent.fsm.journal import read_kept, refuse_unstorable, reply_record, request_record
from fsm_agent.request import Request, answerable, effect_of

POINTS: tuple[Point, ...] = get_args(Point)


@dataclass(frozen=True, slots=True)
class Asks:
    """What the extensions of an agent ask for. ``kinds``: classes of requests by extension and name."""

    requests: tuple[AskExtension, ...] = ()
    kinds: Mapping[tuple[str, str], type] = field(default_factory=dict)


def asks_of(extensions: Iterable[Extension]) -> Asks:
    """Collect the requests of extensions. Raises ``ConfigError`` with the name of one that cannot be used."""
    requests: list[AskExtension] = []
    kinds: dict[tuple[str, str], type] = {}
    owners: dict[str, Extension] = {}
    for extension in extensions:
        for point, request in _declared_requests(extension):
            if owners.setdefault(extension.name, extension) is not extension:
                raise ConfigError("two extensions that ask have the same name", extension.name, "each once")
            asked = _ask_extension(extension, point, request)
            if asked in requests:
                raise ConfigError(f"extension {extension.name} asks twice at {point}", request, "each once")
            place = extension.name, asked.kind
            if kinds.setdefault(place, type(request)) is not type(request):
                problem = f"extension {extension.name} asks with two classes of the same name"
                raise ConfigError(problem, asked.kind, "each once")
            requests.append(asked)
    return Asks(tuple(requests), kinds)


def _declared_requests(extension: Extension) -> Iterator[tuple[Point, Request]]:
    try:
        asks: Any = extension.asks()
        given = [(point, one) for point, asked in asks.items() for one in asked]
    except Exception as error:  # code of others may raise anything
        raise ConfigError(f"asks of extension {extension.name} {words_of(error)}") from error
    for point, request in given:
        if point not in POINTS:
            raise ConfigError(f"extension {extension.name} asks at no point", point, near(str(point), POINTS))
        if not (isinstance(request, Request) and answerable(request)):
            allowed = "dataclasses that inherit from Request, with reply: ClassVar[type]"
            raise ConfigError(f"extension {extension.name} asks with no request", request, allowed)
        yield point, request


def _ask_extension(extension: Extension, point: Point, request: Request) -> AskExtension:
    """The request as data. Nothing of it ends a turn that is closing: its other steps are still due."""
    try:
        refuse_unstorable(kind := type(request))
        effect = effect_of(request)
        doubt = reply_record(request, request.in_doubt()) if effect == "unsafe" else None  # type: ignore[attr-defined]
        kept = request_record(request)
    except ConfigError as error:
        raise ConfigError(f"extension {extension.name}: {error}") from None
    ends = extension.when_it_fails == "end" and point != "Finalize"
    return AskExtension(extension.name, point, kind.__name__, kept, effect, doubt, ends=ends)


class PointRequests:
    """Performs in one turn what extensions ask for. ``parts``: what those that ask do in it, by name.
    ``recorded``: what the visit that is run again has in the journal, by key; ``None`` for a request that was
    in flight. The journal answers a request at its place, which may be another one where rules differ."""

    def __init__(self, asks: Asks, parts: Mapping[str, Part], here: Here) -> None:
        self._asks, self._parts, self._here = asks, parts, here
        self.recorded: Mapping[str, ExtensionAnswer | None] = {}

    async def perform(self, turn: Any, request: AskExtension) -> ExtensionAnswer:
        """Return the extension's reply, or why it has no value: an extension that fails or is not here never
        raises, so that the others are not cancelled, and the journal has what became of it."""
        if (before := self.recorded.get(request.key)) is not None:
            return before
        kind = self._asks.kinds.get((request.extension, request.kind))
        if request.effect == "unsafe" and request.key in self.recorded:
            answer = request.in_doubt()
        elif kind is None:
            answer = ExtensionAnswer(problem=f"{request} was not performed: this agent does not have it")
        elif self._here.imported and replace(request, key="") not in self._asks.requests:
            answer = ExtensionAnswer(problem=f"{request} was not performed: it came in a file, and differs")
        else:
            answer = await self._perform(turn, request, kind)
        if answer.problem:
            self._here.tell(answer.problem + ("" if request.ends else "; the turn continues without it"))
        return answer

    async def _perform(self, turn: Any, request: AskExtension, kind: type) -> ExtensionAnswer:
        seconds, limit = self._here.settings.hook_timeout, None
        try:
            async with asyncio.timeout(seconds) as limit:
                asked = read_kept(kind, request.request)
                reply = await self._parts[request.extension].perform(asked, turn, request.key)
                return ExtensionAnswer(reply_record(asked, reply))
        except Exception as error:
            late = limit is not None and limit.expired()
            why = f"took longer than {seconds:g} s" if late else words_of(error)
            problem = f"extension {request.extension} {why} ({request.kind} at {request.point})"
            return ExtensionAnswer(request.doubt, problem, doubtful=request.effect == "unsafe")
