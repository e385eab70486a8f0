"""The outcome of one recorded turn under a change: a verdict, and the differences in words."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from fsm_agent.backtest.playback import Asked, Change, Played, RecordedTurn
from fsm_agent.composition.turn_wiring import DIGEST
from fsm_agent.errors import FsmAgentError
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.values import UNREADABLE
from fsm_agent.sessions.store import Store
from fsm_agent.support.redaction import MASK, mask
from fsm_agent.support.texts import clean

Kind = Literal["same", "requests", "differs", "missing", "refused"]
KINDS: Mapping[Kind, str] = {
    "same": "the same",
    "requests": "the same moves, different requests",
    "differs": "different moves",
    "missing": "asks for something that was not recorded",
    "refused": "cannot be played",
}
assert tuple(KINDS) == get_args(Kind)
MOST_WORDS = 5
"""Maximum request differences named in a verdict; it counts the rest."""
AROUND = 30
"""Characters shown on both sides of a text change."""


@dataclass(frozen=True, slots=True)
class Side:
    """A move on one side: the row taken, and the guards evaluated for it."""

    row: str
    dest: str
    exit: str | None
    guards: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, step: Step) -> Side:
        """Extract it from a move."""
        return cls(step.row, step.dest, step.exit, tuple((label, value) for label, value in step.guards))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict about a turn. ``at``: the first differing move (from 1), or the one before which an
    unrecorded request was made; ``state``: its state. ``words``: how requests differ, or why the turn cannot
    be played; ``requests``: how many differ."""

    turn: str
    asked: str
    moves: int
    kind: Kind
    at: int = 0
    state: str = ""
    recorded: Side | None = None
    now: Side | None = None
    words: tuple[str, ...] = ()
    requests: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Verdict:
        """Parse the JSON values of ``to_dict``."""
        sides = {
            name: None if (side := value[name]) is None
            else Side(**{**side, "guards": tuple((label, found) for label, found in side["guards"])})
            for name in ("recorded", "now")
        }  # fmt: skip
        return cls(**{**value, **sides, "words": tuple(value["words"])})


def read(store: Store, turn: str) -> RecordedTurn | str:
    """Return a recorded turn, or why it cannot be read."""
    try:
        return RecordedTurn.read(store, turn)
    except FsmAgentError as error:
        return str(error)
    except UNREADABLE as error:
        return f"the turn is damaged ({type(error).__name__}: {error})"


async def judge(store: Store, turn: str, change: Change, *, masked: bool = False) -> Verdict:
    """Read a turn, and play it unchanged and with ``change``."""
    recorded = read(store, turn)
    if isinstance(recorded, str):
        return unreadable(turn, recorded)
    return await judge_turn(recorded, change, masked=masked)


async def judge_turn(recorded: RecordedTurn, change: Change, *, masked: bool = False) -> Verdict:
    """Play a turn unchanged and with ``change``, both in this process. ``masked``: secrets of its file are
    hidden."""
    base, refused = await play_unchanged(recorded, masked=masked)
    return refused or verdict_of(recorded, base, await recorded.play(change))


async def play_unchanged(recorded: RecordedTurn, *, masked: bool = False) -> tuple[Played, Verdict | None]:
    """Play a turn unchanged. Also return a verdict if the result differs from the record: then nothing can be
    concluded."""
    if recorded.info.digest != DIGEST:
        reason = f"recorded with another version of the table: {recorded.info.digest}, here {DIGEST}"
        return Played(), refusal(recorded, reason)
    if masked and _is_masked(recorded):
        return Played(), refusal(recorded, "parts of it are masked, so it would be another turn")
    base = await recorded.play()
    if (at := _first_other(recorded, base)) or base.missing:
        where = f"move {at}" if at else f"a request of {base.missing.state}" if base.missing else ""
        reason = f"played again unchanged, it does not come out as recorded: {where} is another one"
        return base, refusal(recorded, reason)
    return base, None


def refusal(recorded: RecordedTurn, reason: str) -> Verdict:
    """Return the verdict about a turn from which nothing can be concluded."""
    info = recorded.info
    return Verdict(info.id, _request_in(info.asked), info.seq, "refused", words=(reason,))


def unreadable(turn_id: str, reason: str) -> Verdict:
    """Return the verdict about an unreadable turn."""
    return Verdict(turn_id, "", 0, "refused", words=(reason,))


def verdict_of(recorded: RecordedTurn, base: Played, other: Played) -> Verdict:
    """Compare a changed playback to the recorded turn, and its requests to those of ``base``."""
    info = recorded.info
    found = list(_other_requests(base, other))
    named: dict[str, Any] = {
        "turn": info.id,
        "asked": _request_in(info.asked),
        "moves": len(recorded.moves),
        "words": tuple(dict.fromkeys(mask(one) for one in found[:MOST_WORDS])),
        "requests": len(found),
    }
    if at := _first_other(recorded, other):
        before = Side.of(recorded.moves[at - 1]) if at <= len(recorded.moves) else None
        now = Side.of(other.steps[at - 1]) if at <= len(other.steps) else None
        if now is not None or other.missing is None:
            state = recorded.moves[at - 1].source if before else other.steps[at - 1].source
            return Verdict(kind="differs", at=at, state=state, recorded=before, now=now, **named)
    if other.missing is not None:
        asks = f"asks for {other.missing.kind}, to which its journal has no reply"
        named["words"] = (asks, *named["words"])
        return Verdict(kind="missing", at=other.missing.seq + 1, state=other.missing.state, **named)
    return Verdict(kind="requests" if found else "same", **named)


def _request_in(text: str) -> str:
    return mask(_cut(text.strip(), 60))


def _first_other(recorded: RecordedTurn, played: Played) -> int:
    """Return the number of the first move that differs from the recorded one; 0 if none does."""
    for number, (was, now) in enumerate(zip(recorded.moves, played.steps, strict=False), 1):
        if _move(was) != _move(now):
            return number
    short = min(len(recorded.moves), len(played.steps))
    return 0 if len(recorded.moves) == len(played.steps) else short + 1


def _move(step: Step) -> tuple[Any, ...]:
    return step.source, step.event, step.row, step.dest, step.exit


def _is_masked(recorded: RecordedTurn) -> bool:
    shown = [recorded.position.snapshot, [one.reply for visit in recorded.visits.values() for one in visit]]
    return MASK in json.dumps(shown) or any(MASK in row.text for _, row in recorded.position.transcript)


# How requests differ, in words


def _other_requests(base: Played, other: Played) -> Iterator[str]:
    """Describe each differing request in the visits that both sides completed."""
    last = min(side.asked[-1].seq for side in (base, other)) - (other.missing is not None)
    ours = [one for one in base.asked if one.seq <= last]
    theirs = [one for one in other.asked if one.seq <= last]
    before, after = ([(one.seq, one.kind) for one in side] for side in (ours, theirs))
    if before == after:
        for was, now in zip(ours, theirs, strict=True):
            if not was.same(now):
                yield from _words(was, now)
        return
    for how, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if how == "equal":
            for was, now in zip(ours[a:b], theirs[c:d], strict=True):
                if not was.same(now):
                    yield from _words(was, now)
            continue
        yield from (f"{one.state} does not ask for {one.kind} any more" for one in ours[a:b])
        yield from (f"{one.state} asks for {one.kind}" for one in theirs[c:d])


def _words(was: Asked, now: Asked) -> Iterator[str]:
    """Describe where and how one request differs."""
    found = [f"{now.kind}: {line}" for line in differences(json.loads(was.text), json.loads(now.text))]
    yield "; ".join(found[:MOST_WORDS]) or f"{now.kind}: written in another way"


def differences(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """Describe where and how two JSON values differ: ``messages[0].content: … {+be brief+}``."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*was, *now)):
            where = f"{path}.{name}" if path else name
            if name not in now:
                yield f"{where} is gone"
            elif name not in was:
                yield f"{where} is new: {_short(now[name])}"
            else:
                yield from differences(was[name], now[name], where)
    elif isinstance(was, list) and isinstance(now, list):
        yield from _of_lists(was, now, path)
    elif isinstance(was, str) and isinstance(now, str):
        yield f"{path}: {first_difference(was, now)}"
    else:
        yield f"{path}: {_short(was)} → {_short(now)}"


def _of_lists(was: Sequence[Any], now: Sequence[Any], path: str) -> Iterator[str]:
    """Compare lists of named items by name, others by place."""
    names = [[_name(one) for one in side] for side in (was, now)]
    if all(names[0]) and all(names[1]) and names[0] != names[1]:
        ours, theirs = dict(zip(names[0], was, strict=True)), dict(zip(names[1], now, strict=True))
        yield from (f"{path}: without {name}" for name in ours if name not in theirs)
        yield from (f"{path}: with {name}" for name in theirs if name not in ours)
        for name in ours.keys() & theirs.keys():
            yield from differences(ours[name], theirs[name], f"{path}[{name}]")
        return
    for place, (one, other) in enumerate(zip(was, now, strict=False)):
        yield from differences(one, other, f"{path}[{_name(one) or place}]")
    if len(was) != len(now):
        yield f"{path}: {len(was)} → {len(now)} entries"


def _name(one: Any) -> str:
    if not isinstance(one, dict):
        return ""
    inner = one.get("function")
    return str(one.get("name") or (inner.get("name") if isinstance(inner, dict) else "") or "")


def _short(value: Any) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 2 * AROUND)


def _cut(text: str, most: int) -> str:
    line = re.sub(r"\s+", " ", clean(text))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def first_difference(was: str, now: str) -> str:
    """Return the first differing words with some context: ``… is high [-today-]{+now+} and the …``."""
    ours, theirs = (re.findall(r"\s+|\S+", side) for side in (was, now))
    first = next(
        (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    left = min(len(ours), len(theirs)) - first
    last = next((n for n in range(left) if ours[-1 - n] != theirs[-1 - n]), left)
    gone, new = ("".join(side[first : len(side) - last]) for side in (ours, theirs))
    before, after = "".join(ours[:first]), "".join(ours[len(ours) - last :])
    marks = (f"[-{_short(gone)}-]" if gone else "") + (f"{{+{_short(new)}+}}" if new else "")
    head = ("…" if len(before) > AROUND else "") + before[-AROUND:]
    tail = after[:AROUND] + ("…" if len(after) > AROUND else "")
    return re.sub(r"\s+", " ", f"{head}{marks}{tail}")
