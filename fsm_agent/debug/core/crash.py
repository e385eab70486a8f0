"""What is known of a turn whose process died: where it was, what was under way, and what *Resume* will do
about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fsm_agent.debug.core.record import Record
from fsm_agent.sessions.store.checksum import loads
from fsm_agent.sessions.store.owners import Owners

Resumed = Literal["in doubt", "again", "once more", "asked"]
"""What becomes of a request that was under way: never made again and reported as in doubt; made again,
because repeating it does no harm; sent once more, out of the budget for lost requests; or a person is asked
again."""
WORDS: dict[Resumed, str] = {
    "in doubt": "It may have taken effect. Resume does not run it again; the model hears that nobody knows.",
    "again": "Resume runs it again: repeating it does no harm.",
    "once more": "Resume sends it once more while the budget “lost_requests” has something left.",
    "asked": "Resume asks a person again.",
}


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A request that had no reply when the process died; ``begun`` in seconds since the epoch."""

    kind: str
    name: str
    effect: str
    begun: float
    request: Any
    resumed: Resumed
    words: str


@dataclass(frozen=True, slots=True)
class Crash:
    """``state``: where the turn is, after ``seq`` moves. ``moved``: when it was last heard of, in seconds
    since the epoch."""

    state: str
    seq: int
    moved: float
    under_way: tuple[UnderWay, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def crash_of(record: Record, owners: Owners) -> Crash | None:
    """``None`` for a turn that ended, that a process runs, or that was let go of in order."""
    info = record.info
    if info.ended is not None or info.owner is None or owners.alive(info.owner) is not None:
        return None
    with record.reading() as c:
        rows = c.execute(
            "SELECT kind, name, class, at, request, request_crc FROM effects WHERE turn = ? AND seq = ?"
            " AND status = 'in_flight' ORDER BY ordinal, place",
            (info.id, info.seq),
        ).fetchall()
    return Crash(info.state, info.seq, info.moved, tuple(_under_way(*row) for row in rows))


def _under_way(kind: str, name: str, effect: str, begun: float, request: str, crc: int | None) -> UnderWay:
    resumed: Resumed = "again"
    if kind == "CallModel":
        resumed = "once more"
    elif kind == "AskApproval":
        resumed = "asked"
    elif effect == "unsafe":
        resumed = "in doubt"
    return UnderWay(kind, name, effect, begun, loads(request, crc), resumed, WORDS[resumed])
