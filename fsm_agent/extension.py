"""``Extension``: a feature of an agent in one class. It may add tools and prompt lines, see and change
requests and replies, follow events, keep values in the store, and bring settings, commands and
``fsm-agent doctor`` lines with it. It adds no transition: the table, and with it every proof, stays as it is.

    class Audit(Extension):
        name = "audit"
        requests = (RunTool,)

        async def around(self, request, turn, call_next):
            reply = await call_next(request)
            await self.kept.put("last call", f"{request.name}: {reply.status}")
            return reply

    Agent(extensions=[Audit()])

An installed package registers its extension by name in the entry point group ``fsm_agent.extensions``. It is
used only if it is named, by ``Agent(extensions=["audit"])`` or ``[settings.extensions.audit]`` in the config
file, because installing code grants it nothing. ``docs/extensions.md`` is the guide.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, ClassVar, Literal, Protocol, get_args

from pydantic import BaseModel, ValidationError

from fsm_agent.conversation.effects import AskExtension, ExtensionAnswer, Point, RunTool
from fsm_agent.errors import ConfigError, ExtensionFailed, near
from fsm_agent.fsm.journal import read_kept, refuse_unstorable, reply_record, request_record
from fsm_agent.fsm.runner import Layer, Perform
from fsm_agent.providers.config_file import config_of
from fsm_agent.request import Request, answerable, effect_of
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.events import Event, Stream, listen
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.settings import EXTENSION_NAME, Settings
from fsm_agent.support.files import home_of
from fsm_agent.support.installation import installed_extensions
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.tools import RunContext, Tool, as_tool

CallNext = Callable[[Any], Awaitable[Any]]
Tell = Callable[[str], None]


class NoSettings(BaseModel, extra="forbid"):
    """Empty settings."""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of ``fsm-agent doctor``: the subject, the finding, and the fix for a problem."""

    what: str
    found: str
    todo: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing needs to be done."""
        return not self.todo


class Here(Protocol):
    """The turn in which a feature works. ``turn``: its values, which a feature does not change; ``budget``:
    shared with other turns; ``fence``: its right to write, with an empty ``turn_id`` for a compaction that a
    person requests; ``imported``: the turn came from a file."""

    turn: Any
    session: Session
    fence: Fence
    settings: Settings
    scene: Callable[[], RunContext[Any]]
    budget: IterationBudget | None
    imported: bool

    def tell(self, text: str) -> None:
        """Report a line to people."""
        ...

    def call_of(self, request: Any) -> RunTool | None:
        """Return the call that a request continues, ``None`` if it no longer runs."""
        ...


class Part:
    """What a feature does in one turn; overriding is optional. ``performs``: its handlers by request type.
    ``outer``: layers around approvals and the debugger. ``checks``: what states request because of it, the
    fields of ``Checks``. ``opens``: its share of the start of the turn, the fields of ``Opened``."""

    def __init__(
        self,
        performs: Mapping[type, Perform] | None = None,
        layers: Sequence[Layer] = (),
        checks: Mapping[str, Any] | None = None,
        opens: Mapping[str, Any] | None = None,
        outer: Sequence[Layer] = (),
    ) -> None:
        self.performs, self.layers, self.outer = performs or {}, layers, outer
        self.checks, self.opens = checks or {}, opens or {}

    def seconds_left(self) -> float:
        """Return how long a model request, or a wait for one, may take."""
        return math.inf

    def follow(self, stream: Stream) -> None:
        """Subscribe to the events of the turn."""

    def stepping(self) -> AbstractContextManager[None]:
        """Return a context manager around each step of the turn."""
        return nullcontext()

    def began(self, text: str) -> None:
        """Handle the start of the turn with this message, or its continuation."""

    async def opening(self) -> Mapping[str, Any]:
        """Return additional fields of ``Opened`` for a new turn."""
        return {}

    def reopened(self) -> None:
        """Handle the continuation of the turn in another process."""

    async def news(self) -> tuple[str, ...]:
        """Return news for the model's next request."""
        return ()

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        """Perform one of its own requests at a named point; by default with its handler."""
        return await self.performs[type(request)](request)

    async def closing(self) -> None:
        """Handle the end of the turn."""


class Extension:
    """A feature of an agent. Only ``name`` is required.

    ``settings`` is the model of its settings, the table ``[settings.extensions.NAME]``; ``config`` holds the
    values. ``kept`` holds this extension's own JSON values by key in the agent's store (``get``, ``put``).
    ``requests``: the types of requests that ``around`` sees; ``None`` for all of them. ``when_it_fails``: an
    ``around`` that raises, takes longer than the setting ``hook_timeout``, or returns a type other than the
    reply's is reported in one line with the name of the extension. Then the turn continues without it, or
    ends by the row for bugs (``"end"``). The same applies to ``perform``. An ``on_event`` that raises is
    reported, too, and receives no more events of that turn."""

    name: ClassVar[str] = ""
    settings: ClassVar[type[BaseModel]] = NoSettings
    requests: ClassVar[Collection[type] | None] = ()
    when_it_fails: ClassVar[Literal["continue", "end"]] = "continue"

    config: Any
    kept: KeptValues

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """Return further tools for the model."""
        return ()

    def prompt(self) -> Sequence[str]:
        """Return lines for the system prompt, unchanged as long as nothing changes: the provider's cache
        loses a changed prompt."""
        return ()

    async def around(self, request: Any, turn: Any, call_next: CallNext) -> Any:
        """Perform a request: ``call_next`` does what would happen without the extension. ``turn`` has the
        turn's position (``turn_id``, ``state``, ``seq``, ``counters()``) and must not be changed."""
        return await call_next(request)

    def asks(self) -> Mapping[Point, Sequence[Request]]:
        """Return its own requests, by the named points at which each turn makes them."""
        return {}

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        """Perform a request that ``asks`` declared; return a value of its ``reply`` type. ``key`` is unique,
        and the same if a crash makes the turn ask again."""
        raise NotImplementedError("it asks, and has no method perform")

    def reply_to(self, kind: type[Request], turn: Any) -> Any:
        """Return the turn's newest reply to a request of this class; ``None`` without one, and after a
        failure."""
        kept = turn.extended.replies.get(f"{self.name} {kind.__name__}")
        return None if kept is None else read_kept(kind.reply, kept)

    def on_event(self, event: Event) -> None:
        """Handle an event in a turn of the agent; return at once."""

    def in_turn(self, here: Here) -> Part:
        """Return its part in one turn; by default it is made of ``around`` and ``on_event``."""
        return _Seeing(self, here)

    def checks(self) -> Iterable[Check]:
        """Return lines for ``fsm-agent doctor``."""
        return ()

    @classmethod
    def commands(cls) -> Any:
        """Return a ``typer.Typer`` with the commands of ``fsm-agent NAME``; ``None`` for none."""
        return None

    async def aclose(self) -> None:
        """Release resources when the agent is closed."""


def kept_values(extension: type[Extension], home: str | os.PathLike[str] | None = None) -> KeptValues:
    """Return an extension's values in the store of a home, by default the usual one; for its commands. Raises
    ``ConfigError``."""
    folder = home_of(home, os.environ)
    settings = Settings.of(None, config_of(folder).settings).store
    store = store_for(folder, settings.durability, settings.database)
    return KeptValues(store, extension.name)


DOORS: Mapping[str, tuple[str, str]] = {
    "openai": ("fsm_agent.serve.openai.door:OpenAiDoor", "serve"),
    "agui": ("fsm_agent.serve.agui:AgUiDoor", "serve"),
    "mcp": ("fsm_agent.serve.mcp_transports:McpDoor", "mcp"),
}
"""The built-in extensions of ``fsm-agent serve``: the location of each class, and the extra with its
libraries. Agents do not use them, and ``serve`` checks their settings."""


def load_extension(name: str) -> type[Extension]:
    """Return the class of an installed extension. Raises ``ConfigError``."""
    found = installed_extensions()
    if name not in found:
        raise ConfigError("no such extension is installed", name, near(name, found) if found else "none")
    try:
        extension = found[name].load()
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(f"extension {name} cannot be loaded ({_why(error)})", found[name].value) from error
    if not (isinstance(extension, type) and issubclass(extension, Extension)):
        raise ConfigError(
            f"extension {name} is not an Extension", extension, "a class that inherits from Extension"
        )
    if extension.name != name:
        raise ConfigError(f"the class of extension {name} has another name", extension.name, name)
    return extension


def extensions_of(
    given: Iterable[Extension | str], settings: Mapping[str, Mapping[str, Any]], kept: KeptValues
) -> tuple[Extension, ...]:
    """Return the extensions of an agent, each with its settings: those ``given``, as objects or by name, and
    those named in ``settings``. Raises ``ConfigError`` with the name of one that cannot be used."""
    found: dict[str, Extension] = {}
    for one in given:
        extension = _make_extension(one) if isinstance(one, str) else one
        if not isinstance(extension, Extension):
            raise ConfigError("extensions has a wrong entry", one, "an Extension, or the name of one")
        name = getattr(extension, "name", None)
        if not isinstance(name, str) or not re.match(EXTENSION_NAME, name):
            allowed = "name = 1 to 40 lower-case letters, digits, underscores and dashes"
            raise ConfigError(f"{type(extension).__name__} has no name that can be used", name, allowed)
        if name in found:
            raise ConfigError("two extensions have the same name", name, "each once")
        found[name] = extension
    found |= {name: _make_extension(name) for name in settings if name not in (*found, *DOORS)}
    for name, extension in found.items():
        extension.config = _config(extension, settings.get(name, {}))
        extension.kept = kept.of(name)
    return tuple(found.values())


def _make_extension(name: str) -> Extension:
    try:
        return load_extension(name)()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"extension {name} cannot be made", _why(error)) from error


def _config(extension: Extension, given: Mapping[str, Any]) -> BaseModel:
    try:
        return extension.settings.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("extensions", extension.name, *map(str, first["loc"])))
        allowed = ", ".join(extension.settings.model_fields) or "no settings"
        raise ConfigError(f"{where}: {first['msg']}", first.get("input"), allowed) from None


def tools_in(extensions: Iterable[Extension], taken: Collection[str]) -> list[Tool]:
    """Return the tools that extensions add. Raises ``ConfigError`` for an object that is not a tool, and for
    a name that another tool of the agent has."""
    found: list[Tool] = []
    for extension in extensions:
        for one in map(as_tool, _items_from(extension, "tools")):
            if one.spec.name in {*taken, *(other.spec.name for other in found)}:
                problem = f"extension {extension.name} adds a tool of a name that is taken"
                raise ConfigError(problem, one.spec.name, "another name")
            found.append(one)
    return found


def prompts_in(extensions: Iterable[Extension]) -> Mapping[str, str]:
    """Return the prompt lines of each extension, by its name. Raises ``ConfigError``."""
    return {
        one.name: "\n".join(map(str, lines)) for one in extensions if (lines := _items_from(one, "prompt"))
    }


def _items_from(extension: Extension, method: str) -> list[Any]:
    """Return the result of an extension's method as a list. Raises ``ConfigError`` if it fails."""
    try:
        value = getattr(extension, method)()
        if isinstance(value, str):
            raise TypeError("a str is not a list")
        return list(value)
    except Exception as error:
        problem = f"{method} of extension {extension.name} failed ({_why(error)})"
        raise ConfigError(problem, None, "a list") from error


async def close_all(extensions: Iterable[Extension], tell: Tell) -> None:
    """Close all of them, even if one fails."""
    for one in extensions:
        try:
            await one.aclose()
        except Exception as error:
            tell(f"extension {one.name} {words_of(error)} (aclose)")


class _Seeing(Part):
    """The part of an extension with only ``around``, ``perform`` and ``on_event``."""

    def __init__(self, extension: Extension, here: Here) -> None:
        seen = extension.requests is None or bool(extension.requests)
        super().__init__(layers=(layer_of(extension, here.settings.hook_timeout, here.tell),) if seen else ())
        self._extension, self._here = extension, here

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        return await self._extension.perform(request, turn, key)

    def follow(self, stream: Stream) -> None:
        if type(self._extension).on_event is not Extension.on_event:
            listen(stream, subscriber_of(self._extension, self._here.tell))


def layer_of(extension: Extension, seconds: float, tell: Tell) -> Layer:
    """Return an extension's layer in the pipeline of a turn. ``seconds``: the time for the extension itself,
    without the requests that it passes on."""

    async def around(request: Any, turn: Any, call_next: CallNext) -> Any:
        below = _Below(request, call_next)
        try:
            async with asyncio.timeout(seconds) as limit:
                reply = await extension.around(request, turn, below.timed(limit, seconds))
            return _check_reply(request, reply)
        except Exception as error:
            if error is below.error:  # not caused by the extension
                raise
            why = f"took longer than {seconds:g} s" if limit.expired() else words_of(error)
            problem = f"extension {extension.name} {why} (around {type(request).__name__})"
            if extension.when_it_fails == "end":
                raise ExtensionFailed(problem) from error
            try:
                reply = await below.reply()
            except ExtensionFailed as lost:
                raise ExtensionFailed(f"{problem}: {lost}") from error
            tell(f"{problem}; the turn continues without it")
            return reply

    return Layer(f"extension {extension.name}", around, extension.requests)


class _Below:
    """The rest of the pipeline below an extension, which may call it once: more model requests, or a second
    run of a tool, are rows of the table."""

    def __init__(self, request: Any, call_next: CallNext) -> None:
        self._request, self._call_next = request, call_next
        self._begun = self._answered = False
        self._reply: Any = None
        self.error: Exception | None = None

    def timed(self, limit: asyncio.Timeout, seconds: float) -> CallNext:
        """Return ``call_next`` without its time counting as the extension's."""

        async def passed_on(request: Any) -> Any:
            if self._begun:
                raise RuntimeError("call_next was called a second time")
            self._begun = True
            limit.reschedule(None)
            try:
                self._reply = await self._call_next(request)
            except Exception as error:
                self.error = error
                raise
            self._answered = True
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
            return self._reply

        return passed_on

    async def reply(self) -> Any:
        """Return the reply without the extension. Raises ``ExtensionFailed`` for an unsafe request that the
        extension abandoned while it was performed: it may have taken effect."""
        if self.error is not None:
            raise self.error
        if self._begun and not self._answered and effect_of(self._request) == "unsafe":
            raise ExtensionFailed("it gave up a request that may have taken effect")
        return self._reply if self._answered else await self._call_next(self._request)


def _check_reply(request: Any, reply: Any) -> Any:
    wanted = getattr(type(request), "reply", None)
    if isinstance(wanted, type | UnionType) and not isinstance(reply, wanted):
        raise TypeError(f"{type(reply).__name__} is not a {getattr(wanted, '__name__', wanted)}")
    return reply


def words_of(error: Exception) -> str:
    """Describe the failure of an extension, to follow its name."""
    return f"failed: {_why(error)}"


def _why(error: Exception) -> str:
    return one_line(mask(f"{type(error).__name__}: {error}"), 200)


def subscriber_of(extension: Extension, tell: Tell) -> Callable[[Event], None]:
    """Return an extension's event subscriber, which ends with the turn or its first exception."""
    failed = False

    def hear(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            extension.on_event(event)
        except Exception as error:
            failed = True  # first: ``tell`` is an event, too
            tell(f"extension {extension.name} {words_of(error)} (on_event); it hears no more of this turn")

    return hear


# ----------------------------------------------------------------------------------------------------
# Requests of extensions at named points: collected when an agent is made, performed in its turns.
#
# A turn keeps the requests in its first snapshot and asks for them wherever it continues. The journal, the
# debugger, and other layers see each as an ``AskExtension``.
#
# The requests are data, and the journal knows one type for all of them. With a type per extension, a journal
# could not be read without the extension. No reply chooses an event: the proofs would depend on it.


POINTS: tuple[Point, ...] = get_args(Point)


@dataclass(frozen=True, slots=True)
class Asks:
    """The requests of an agent's extensions. ``kinds``: classes of requests by extension and name."""

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
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(f"asks of extension {extension.name} {words_of(error)}") from error
    for point, request in given:
        if point not in POINTS:
            raise ConfigError(f"extension {extension.name} asks at no point", point, near(str(point), POINTS))
        if not (isinstance(request, Request) and answerable(request)):
            allowed = "dataclasses that inherit from Request, with reply: ClassVar[type]"
            raise ConfigError(f"extension {extension.name} asks with no request", request, allowed)
        yield point, request


def _ask_extension(extension: Extension, point: Point, request: Request) -> AskExtension:
    """Return the request as data. It never ends a turn that is closing, whose other steps are still due."""
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
    """Performs the requests of extensions in one turn. ``parts``: the parts of these extensions by name.
    ``recorded``: the journal's answers of a visit that runs again, by key; ``None`` for a request that was in
    flight. The journal answers a request at its place, which may differ if the rules have changed."""

    def __init__(self, asks: Asks, parts: Mapping[str, Part], here: Here) -> None:
        self._asks, self._parts, self._here = asks, parts, here
        self.recorded: Mapping[str, ExtensionAnswer | None] = {}

    async def perform(self, turn: Any, request: AskExtension) -> ExtensionAnswer:
        """Return the extension's reply, or why it has no value. A missing or failing extension never raises,
        so that the others are not cancelled and the journal has the outcome."""
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
