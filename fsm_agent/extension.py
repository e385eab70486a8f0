"""``Extension``: a feature of an agent in one class. It may add tools and lines of the prompt, see and change
requests and replies, follow what happens, keep values in the store, and bring settings, commands and lines of
``fsm-agent doctor`` with it. It adds no transition: the table, and with it every proof, stays as it is.

    class Audit(Extension):
        name = "audit"
        requests = (RunTool,)

        async def around(self, request, turn, call_next):
            reply = await call_next(request)
            await self.kept.put("last call", f"{request.name}: {reply.status}")
            return reply

    Agent(extensions=[Audit()])

An installed package offers its extension under the entry point group ``fsm_agent.extensions``, by its name.
It is used where it is named, ``Agent(extensions=["audit"])`` or ``[settings.extensions.audit]`` in the config
file, because code that is only installed has been granted nothing. ``docs/extensions.md`` is the guide.
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
    """The settings of an extension that has none."""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of ``fsm-agent doctor``: what was looked at, what was found, and what to do about a problem."""

    what: str
    found: str
    todo: str = ""

    @property
    def ok(self) -> bool:
        """Say whether there is nothing to do."""
        return not self.todo


class Here(Protocol):
    """The turn that a feature is at work in. ``turn``: its values, which a feature does not change;
    ``budget``: what it shares with others; ``fence``: its right to write, with an empty ``turn_id`` for a
    compaction that a person asks for; ``imported``: it came in a file."""

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
        """Return the call that a request continues, ``None`` where nothing runs any more."""
        ...


class Part:
    """What a feature does in one turn; all members may be left as they are. ``performs``: its handlers by the
    type of request. ``outer``: layers around approvals and the debugger. ``checks``: what states ask for
    because of it, the fields of ``Checks``. ``opens``: what the turn starts with because of it, the fields of
    ``Opened``."""

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
        """Return how long a request to a model, or a wait for one, may take."""
        return math.inf

    def follow(self, stream: Stream) -> None:
        """Subscribe to what happens in the turn."""

    def stepping(self) -> AbstractContextManager[None]:
        """Around each step of the turn."""
        return nullcontext()

    def began(self, text: str) -> None:
        """The turn begins with this message, or continues."""

    async def opening(self) -> Mapping[str, Any]:
        """Return what else a new turn starts with, the fields of ``Opened``."""
        return {}

    def reopened(self) -> None:
        """The turn continues in another process."""

    async def news(self) -> tuple[str, ...]:
        """Return what the model is to know before its next request."""
        return ()

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        """Perform a request of its own at a named point; without another method, by its handler."""
        return await self.performs[type(request)](request)

    async def closing(self) -> None:
        """The turn ends."""


class Extension:
    """A feature of an agent. All members but ``name`` may be left as they are.

    ``settings`` is the model of its settings, the table ``[settings.extensions.NAME]``; ``config`` holds the
    values. ``kept`` holds JSON values by key in the agent's store (``get``, ``put``), of this extension
    alone. ``requests``: the types of requests that ``around`` sees; ``None`` for all of them.
    ``when_it_fails``: an ``around`` that raises, takes longer than the setting ``hook_timeout``, or returns
    another type than the reply's, is reported in one line with the name of the extension; then the turn
    continues without it, or ends by the row for bugs (``"end"``). So does ``perform``. An ``on_event`` that
    raises is reported, too, and hears no more of that turn."""

    name: ClassVar[str] = ""
    settings: ClassVar[type[BaseModel]] = NoSettings
    requests: ClassVar[Collection[type] | None] = ()
    when_it_fails: ClassVar[Literal["continue", "end"]] = "continue"

    config: Any
    kept: KeptValues

    def tools(self) -> Sequence[Tool | Callable[..., Any]]:
        """Tools for the model, besides those of the agent."""
        return ()

    def prompt(self) -> Sequence[str]:
        """Lines of the system prompt, which are the same as long as nothing changes: a prompt that changes is
        no longer in the provider's cache."""
        return ()

    async def around(self, request: Any, turn: Any, call_next: CallNext) -> Any:
        """Perform a request: ``call_next`` does what would happen without the extension. ``turn`` says where
        the turn is (``turn_id``, ``state``, ``seq``, ``counters()``) and is not to be changed."""
        return await call_next(request)

    def asks(self) -> Mapping[Point, Sequence[Request]]:
        """Requests of its own, by the named points at which each turn asks for them."""
        return {}

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        """Perform a request that ``asks`` declared; return what its ``reply`` names. ``key`` is the same when
        a crash makes the turn ask again, and differs from all others."""
        raise NotImplementedError("it asks, and has no method perform")

    def reply_to(self, kind: type[Request], turn: Any) -> Any:
        """Return the newest reply of the turn to a request of this class; ``None`` without one, and after a
        failure."""
        kept = turn.extended.replies.get(f"{self.name} {kind.__name__}")
        return None if kept is None else read_kept(kind.reply, kept)

    def on_event(self, event: Event) -> None:
        """Follow what happens in the turns of the agent; it must return at once."""

    def in_turn(self, here: Here) -> Part:
        """Return what it does in one turn; that of an extension is made of ``around`` and ``on_event``."""
        return _Seeing(self, here)

    def checks(self) -> Iterable[Check]:
        """Lines of ``fsm-agent doctor``."""
        return ()

    @classmethod
    def commands(cls) -> Any:
        """A ``typer.Typer`` with the commands of ``fsm-agent NAME``; ``None`` for none."""
        return None

    async def aclose(self) -> None:
        """Release what it holds; the agent is closed."""


def kept_values(extension: type[Extension], home: str | os.PathLike[str] | None = None) -> KeptValues:
    """What an extension keeps in the store of a home, by default the usual one; for its commands. Raises
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
"""Extensions of ``fsm-agent serve`` that this package has: where the class of each is, and the extra with the
libraries that it needs. No agent uses them, and their settings are checked there."""


def load_extension(name: str) -> type[Extension]:
    """The class of an installed extension. Raises ``ConfigError``."""
    found = installed_extensions()
    if name not in found:
        raise ConfigError("no such extension is installed", name, near(name, found) if found else "none")
    try:
        made = found[name].load()
    except Exception as error:  # code of others may raise anything
        raise ConfigError(f"extension {name} cannot be loaded ({_why(error)})", found[name].value) from error
    if not (isinstance(made, type) and issubclass(made, Extension)):
        raise ConfigError(
            f"extension {name} is not an Extension", made, "a class that inherits from Extension"
        )
    if made.name != name:
        raise ConfigError(f"the class of extension {name} has another name", made.name, name)
    return made


def extensions_of(
    given: Iterable[Extension | str], settings: Mapping[str, Mapping[str, Any]], kept: KeptValues
) -> tuple[Extension, ...]:
    """The extensions of an agent, each with its settings: those that are ``given``, as objects or by name,
    and those that ``settings`` name. Raises ``ConfigError`` with the name of one that cannot be used."""
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
    """The tools that extensions add. Raises ``ConfigError`` for what is no tool, and for a name that another
    tool of the agent has."""
    found: list[Tool] = []
    for extension in extensions:
        for one in map(as_tool, _items_from(extension, "tools")):
            if one.spec.name in {*taken, *(other.spec.name for other in found)}:
                problem = f"extension {extension.name} adds a tool of a name that is taken"
                raise ConfigError(problem, one.spec.name, "another name")
            found.append(one)
    return found


def prompts_in(extensions: Iterable[Extension]) -> Mapping[str, str]:
    """The lines that extensions add to the prompt, by their names. Raises ``ConfigError``."""
    return {
        one.name: "\n".join(map(str, lines)) for one in extensions if (lines := _items_from(one, "prompt"))
    }


def _items_from(extension: Extension, method: str) -> list[Any]:
    """What a method of an extension returns, as a list. Raises ``ConfigError`` when it fails."""
    try:
        value = getattr(extension, method)()
        if isinstance(value, str):
            raise TypeError("a str is not a list")
        return list(value)
    except Exception as error:
        problem = f"{method} of extension {extension.name} failed ({_why(error)})"
        raise ConfigError(problem, None, "a list") from error


async def close_all(extensions: Iterable[Extension], tell: Tell) -> None:
    """Close all of them; one that fails keeps none from that."""
    for one in extensions:
        try:
            await one.aclose()
        except Exception as error:
            tell(f"extension {one.name} {words_of(error)} (aclose)")


class _Seeing(Part):
    """The part of an extension that has only methods to be called."""

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
    """The layer of an extension in the pipeline of a turn. ``seconds``: the time that it may take itself,
    without what it passes on."""

    async def around(request: Any, turn: Any, call_next: CallNext) -> Any:
        below = _Below(request, call_next)
        try:
            async with asyncio.timeout(seconds) as limit:
                reply = await extension.around(request, turn, below.timed(limit, seconds))
            return _check_reply(request, reply)
        except Exception as error:
            if error is below.error:  # not the extension's doing
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
    """What an extension passes on. It does so once: more requests to a model, or a second run of a tool, are
    rows of the table."""

    def __init__(self, request: Any, call_next: CallNext) -> None:
        self._request, self._call_next = request, call_next
        self._begun = self._answered = False
        self._reply: Any = None
        self.error: Exception | None = None

    def timed(self, limit: asyncio.Timeout, seconds: float) -> CallNext:
        """``call_next``, whose time is not the extension's."""

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
        """What the request would have had without the extension. Raises ``ExtensionFailed`` for an unsafe one
        that the extension gave up while it was performed: it may have taken effect."""
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
    """How the failure of an extension is reported, behind its name."""
    return f"failed: {_why(error)}"


def _why(error: Exception) -> str:
    return one_line(mask(f"{type(error).__name__}: {error}"), 200)


def subscriber_of(extension: Extension, tell: Tell) -> Callable[[Event], None]:
    """What follows the events of a turn for an extension. One that raises hears no more of that turn."""
    failed = False

    def hear(event: Event) -> None:
        nonlocal failed
        if failed:
            return
        try:
            extension.on_event(event)
        except Exception as error:
            failed = True  # before: ``tell`` is an event, too
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
