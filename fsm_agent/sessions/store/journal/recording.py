"""What is known of the visit of a state that a crash, a fork or a person interrupted: replies that need not
be asked for.

States are pure, so a visit that is run again asks for the same things in the same order: a request is known
by its place in the visit and by what it says. ``Recording`` is of the turns of any table;
``conversation_recording`` of those that talk to a model. (Why: decision 28.)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.fsm.exchange_form import is_kept_as, read_reply
from fsm_agent.fsm.journal import UNKNOWN
from fsm_agent.request import effect_of, reusable
from fsm_agent.sessions.store.journal.read import Effect

Origin = Literal["", "by hand", "taken over"]
"""Who gave a reply: the world, a person at a fork, or the turn that was forked."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as the journal has it. ``reply`` is ``None`` while it was in flight. ``foreign``: it is in
    the journal of the turn that this one was forked from."""

    kind: str
    request: dict[str, Any]
    status: str
    reply: Any = None
    foreign: bool = False


@dataclass(slots=True)
class Recording:
    """Replies by (ordinal, place) of one visit. ``doubts`` collects (name, id) of requests whose effect
    nobody knows, ``origins`` who gave the replies that the journal of this turn does not have. ``waiting``:
    calls whose results come later, with the digests of what they were made with; they run elsewhere, and are
    not begun again. ``resumed``: another process began the visit."""

    entries: dict[tuple[int, int], Recorded] = field(default_factory=dict)
    doubts: list[tuple[str, str]] = field(default_factory=list)
    origins: dict[tuple[int, int], Origin] = field(default_factory=dict)
    resumed: bool = False
    waiting: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, effects: Iterable[Effect]) -> Recording:
        """What the journal has of a visit."""
        return cls(
            {
                (one.ordinal, one.place): Recorded(one.kind, one.request, one.status, one.reply)
                for one in effects
            }
        )

    def silent(self) -> bool:
        """Is nothing known that a request could be answered with? So it is in nearly every visit."""
        return not self.entries

    def unbelieved(self) -> Recording:
        """For a turn that came in a file: what a stranger says was answered is asked again, and what may have
        been done already is in doubt."""
        return Recording({place: replace(entry, reply=None) for place, entry in self.entries.items()})

    def cut_off(self) -> frozenset[str]:
        """Return the keys of calls that were running when their process ended."""
        return frozenset()

    def answered(self) -> frozenset[str]:
        """Return the names of tools with a call in this visit that is not made again."""
        return frozenset()

    def taken_over(self) -> Recording:
        """What a fork takes over: nothing, it asks again."""
        return Recording()

    def answers(self) -> dict[str, Any] | None:
        """What a fork begins with, as JSON values; ``None`` for nothing."""
        return None

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        """The reply that is known for this request, or ``UNKNOWN``. One that was in flight when its process
        ended, and is unsafe, is answered with what it says itself about that. A person's answer is never
        taken from the record."""
        entry = self.entries.get((ordinal, place))
        if entry is None or entry.kind != type(request).__name__ or not is_kept_as(request, entry.request):
            return UNKNOWN
        if getattr(request, "question_id", None) is not None:
            return UNKNOWN
        if entry.reply is not None and entry.status == "done":
            return read_reply(request, entry.reply) if reusable(request) else UNKNOWN
        if effect_of(request) == "unsafe":
            self.doubts.append((type(request).__name__, f"{ordinal}.{place}"))
            return request.in_doubt()
        return UNKNOWN

    def where(self, ordinal: int, place: int, request: Any) -> tuple[int, int]:
        """(ordinal, place) under which the journal keeps this request."""
        return ordinal, place
