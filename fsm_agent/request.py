"""What a request of a state declares about itself, for the journal, recording, replay and debugger.

All of it is optional. A class may inherit from ``Request``, or be any dataclass that has some of these::

    @dataclass(frozen=True)
    class Charge(Request):
        order: str
        cents: int
        reply: ClassVar = Charged                      # what answers it: any type that can be stored
        effect: ClassVar[Effect] = "unsafe"            # pure, idempotent (the default) or unsafe

        def in_doubt(self) -> Charged:                 # the reply when a crash left it unknown
            return Charged("unknown")

With ``reply`` a person may answer it by hand, and after a crash a reply in the journal is reused instead of
asking twice. A request that was in flight when its process ended is repeated if it is pure or idempotent; an
unsafe one is not. (Why: decision 83.)"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import clean

Effect = Literal["pure", "idempotent", "unsafe"]
Needed = Literal["all with its intent", "the row that paid for it", "all", "nothing"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Before ``what`` happens, ``needs`` must be on disk, to keep ``promise``."""

    what: str
    needs: Needed
    promise: str


PURE = Flush("anything else is asked for", "nothing", "it is answered again when the visit is run again")
IDEMPOTENT = Flush(
    "a request of a workflow or an extension that is not pure is performed",
    "the row that paid for it",
    "what led to it is not done again",
)
UNSAFE = Flush(
    "an unsafe request of a workflow or an extension is performed",
    "all with its intent",
    "it is performed at most once",
)
BY_EFFECT: Mapping[str, Flush] = {"pure": PURE, "idempotent": IDEMPOTENT, "unsafe": UNSAFE}


class Request:
    """A request of a state. Subclasses are frozen dataclasses; undeclared members have these defaults."""

    __slots__ = ()

    reply: ClassVar[Any]
    """The type of its reply, if a person or the journal may supply it."""
    effect: ClassVar[Effect] = "idempotent"
    """What a crash allows: ``pure`` and ``idempotent`` requests are repeated, ``unsafe`` ones are not."""
    intent: ClassVar[bool | None] = None
    """Whether the journal records it while it is in flight. ``None``: unless it is pure."""
    reused: ClassVar[bool] = True
    """Whether the reply in the journal answers it when a visit runs again."""
    paid: ClassVar[bool] = False
    """Whether its reply has a price, which the journal books."""

    @property
    def flush(self) -> Flush:
        """What must be on disk before it is performed."""
        return BY_EFFECT[effect_of(self)]

    def listed(self) -> tuple[str, str, str]:
        """Return its name, effect and key for lists; an empty string is omitted."""
        return name_of(self), effect_of(self), ""

    def doubtful(self, reply: Any) -> bool:
        """Return whether the reply leaves the outcome of the request unknown."""
        return False

    def consumes(self, reply: Any) -> bool:
        """Return whether the reply took something that no longer exists at its source."""
        return False


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a class settles for all its requests, see ``Request``. ``doubtful`` and ``consumes``: whether the
    class has an answer of its own, so that a request has to be asked."""

    intent: bool | None = None
    paid: bool = False
    doubtful: bool = False
    consumes: bool = False


@functools.cache
def declaration_of(kind: type) -> Declaration:
    """Return what a class of requests declares, read once; any class may be one."""
    if not issubclass(kind, Request):
        return Declaration()
    own = kind.doubtful is not Request.doubtful, kind.consumes is not Request.consumes
    return Declaration(kind.intent, kind.paid, *own)


def effect_of(request: Any) -> Effect:
    """Return what a crash allows. Raises ``ConfigError`` for an unknown effect, and for an unsafe request
    that does not declare its reply after a crash."""
    effect: Effect = getattr(request, "effect", "idempotent")
    return _check_effect(type(request), effect)


def refuse_effect(kind: type) -> None:
    """Raise what ``effect_of`` raises for the requests of a class, if the class declares their effect."""
    effect: Effect = getattr(kind, "effect", "idempotent")
    if not hasattr(effect, "__get__"):  # else each request has its own
        _check_effect(kind, effect)


def _check_effect(kind: type, effect: Effect) -> Effect:
    if effect not in BY_EFFECT:
        raise ConfigError(f"{kind.__name__} has no such effect", effect, ", ".join(BY_EFFECT))
    if effect == "unsafe" and not (hasattr(kind, "reply") and callable(getattr(kind, "in_doubt", None))):
        raise without_doubt(kind)
    return effect


def without_doubt(kind: type) -> ConfigError:
    """Return the error for an unsafe request that does not declare its reply after a crash."""
    return ConfigError(
        f"{kind.__name__} is unsafe, and its reply after a crash is not declared",
        None,
        "reply: ClassVar[type] and a method in_doubt() that returns one",
    )


def answerable(request: Any) -> bool:
    """Return whether the request declares its reply, in a class variable ``reply``."""
    return hasattr(type(request), "reply")


def reusable(request: Any) -> bool:
    """Return whether the reply in the journal answers the request when a visit runs again. That of an unsafe
    one always does: it is performed once."""
    declined = isinstance(request, Request) and not request.reused and effect_of(request) != "unsafe"
    return answerable(request) and not declined


def name_of(request: Any) -> str:
    """Return a few words that distinguish a request from others of its kind: its first field, if that is a
    short text."""
    if dataclasses.is_dataclass(request) and (fields := dataclasses.fields(request)):
        first = getattr(request, fields[0].name)
        if isinstance(first, str) and len(first) <= 40:
            return clean(first)
    return ""


def flush_of(request: Any) -> Flush:
    """Return what must be on disk before the request is performed."""
    return request.flush if isinstance(request, Request) else BY_EFFECT[effect_of(request)]


def list_entry(request: Any) -> tuple[str, str, str]:
    """Return the name, effect and key of a request for lists."""
    return request.listed() if isinstance(request, Request) else (name_of(request), effect_of(request), "")


Waits = Literal["approval", "question", "result", "timer"]
"""What a suspended turn waits for."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Replaces a reply that is not available yet: the turn is suspended until it arrives, perhaps days later
    in another process.

    ``kind``: what is waited for, ``None`` if another turn waits and has recorded it. ``call`` and ``tool``:
    the waiting call; ``asked``: the full question; ``choices``: possible or offered answers; ``digest`` of
    the question's subject; ``due``: when an answer is no longer needed, in seconds since the epoch.
    ``otherwise``: the reply if this cannot be stored."""

    kind: Waits | None = None
    call: str = ""
    tool: str = ""
    asked: str = ""
    choices: tuple[str, ...] = ()
    digest: str = ""
    due: float | None = None
    otherwise: Any = None
