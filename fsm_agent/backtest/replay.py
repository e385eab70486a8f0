"""A recorded turn as a pytest test that plays it again, whole or shrunk to the replies that its end needs.

The file has the replies of the model, the tools, the people and the clock, in the order of the requests.
Nothing else is asked, so no tool runs and nothing waits (``fsm_agent.backtest.playback``).
"""

from __future__ import annotations

import asyncio
import pprint
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from fsm_agent.backtest.playback import opening_of, play_turn
from fsm_agent.composition.turn_wiring import TURN, TurnState
from fsm_agent.conversation.effects import CallModel, RunTool
from fsm_agent.conversation.messages import Message
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import restore
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.properties import Monitor, Property
from fsm_agent.fsm.table import Counted
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import AGENT_TURN, Effect, Turns
from fsm_agent.sessions.store.rewind import position_of
from fsm_agent.settings import Settings
from fsm_agent.support.redaction import mask_json
from fsm_agent.support.texts import one_line


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay: the rows taken, in order, the exit reason, and the answer; ``steps`` with the
    counters that they changed, and the ``turn`` with its limits."""

    moves: list[str]
    turn_exit_reason: str | None
    final_response: str | None
    steps: Sequence[Step] = field(default=(), compare=False, repr=False)
    turn: Counted | None = field(default=None, compare=False, repr=False)


class Replay:
    """A recording of a turn. ``message`` and ``history`` (rows): its input; ``opened``: what it found at its
    start, by field names of the turn. ``model``: replies in order. ``tools``: outcomes by call id, several
    for a call that ran again. ``others``: {kind of request: replies in order}. All in the journal's JSON
    form."""

    def __init__(
        self,
        *,
        message: Any,
        model: Sequence[Mapping[str, Any]],
        opened: Mapping[str, Any],
        tools: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        others: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._message, self._history, self._settings, self._opened = message, history, settings or {}, opened
        self._model, self._tools = deque(model), {call: deque(made) for call, made in (tools or {}).items()}
        self._others = {kind: deque(replies) for kind, replies in (others or {}).items()}

    def run(self) -> Replayed:
        """Play the turn to its end. Raises ``AssertionError`` if it makes a request that the record cannot
        answer."""
        stored = {
            **self._opened,
            "user_content": self._message,
            "turn_id": "replay",
            "session_id": "s-replay",
        }
        turn, found = (
            restore(TurnState, stored, settings=Settings.of(self._settings), history=[], rows=[])
            for _ in range(2)
        )
        opened = opening_of(found, map(Message.from_dict, self._history))
        played = asyncio.run(play_turn(turn, opened, self._next))
        if played.missing is not None:
            call = getattr(played.missing.request, "call_id", "")
            what = f"{played.missing.kind} {call}".strip()
            raise AssertionError(f"the turn asked for something that is not in the record: {what}")
        reason = turn.exit.value if turn.exit else None
        moves = [step.row for step in played.steps]
        return Replayed(moves, reason, turn.ending.final_response, played.steps, turn)

    def left(self) -> list[str]:
        """Return where unused replies remain: kinds of requests, and ids of calls."""
        kinds = [kind for kind, replies in self._others.items() if replies]
        calls = [call for call, outcomes in self._tools.items() if outcomes]
        return [*(["CallModel"] if self._model else []), *kinds, *calls]

    def rest(self) -> dict[str, Any]:
        """Return the numbers of unused replies: of the model, by call id, by kind of other requests."""
        tools, others = (
            {name: len(one) for name, one in part.items()} for part in (self._tools, self._others)
        )
        return {"model": len(self._model), "tools": tools, "others": others}

    def _next(self, request: Any, seq: int) -> Any:
        match request:
            case CallModel():
                left = self._model
            case RunTool(call_id=call_id):
                left = self._tools.get(call_id, deque())
            case _:
                left = self._others.get(type(request).__name__, deque())
        return left.popleft() if left else None


# ----------------------------------------------------------------------------------------------------
# A pytest file from a recorded turn. It runs before it is returned, so a returned test passes.


LONGEST = 2_000
"""Maximum moves of a turn for a test."""
OPENED = (
    "runtime", "tools", "system_prompt", "ephemeral_prompt", "workdir", "auxiliary", "attended", "has_memory",
    "has_engine", "compacted_before", "compaction_blocked", "review_due", "unnamed", "checks", "output",
    "agent", "silences", "repairs_done", "asks",
)  # fmt: skip
WIDTH = 120


def make_test(store: Store, turn_id: str, *, shrink: bool = False, broken: Property | None = None) -> str:
    """Return the text of a test that plays the turn again and checks its moves and its end. ``shrink``: with
    the fewest replies that lead to the same last row, or that break the property ``broken``. Raises
    ``ConfigError`` for a turn that has not ended, is too long, does not break the property, or does not
    repeat (one that was forked with changes of its state, for instance)."""
    turns = Turns(store.database)
    info = turns.info(turn_id).moved_by(AGENT_TURN)
    if info.ended is None or not info.seq:
        raise ConfigError("only a turn that has ended can be made a test", turn_id)
    if info.seq > LONGEST:
        raise ConfigError("the turn is too long for a test", f"{info.seq:,} moves", f"up to {LONGEST:,}")
    recorded = mask_json(recording_of(store, turn_id))
    moves, result = [step.row for step in turns.steps(turn_id)], mask_json(turns.result(turn_id) or {})
    played = _check_replay(recorded, moves, turn_id)
    how = f"It ended with {info.exit} after {len(moves)} moves."
    if shrink:
        keeps = None if broken is None else breaks(broken)
        if broken is not None and keeps is not None and not keeps(played):
            raise ConfigError("this turn does not break the property", broken.says, "a turn that breaks it")
        before = len(recorded["model"])
        recorded, played = shrunk(recorded, keeps)
        how += f" Shrunk from {before} replies of the model to {len(recorded['model'])}."
        how += "" if broken is None else f" It breaks: {broken.says}"
    final = played.final_response if shrink else result.get("final_response")
    asked = one_line(mask_json(info.asked), 80)
    ended = played.turn_exit_reason if shrink else info.exit
    return text_of_test(turn_id, asked, how, recorded, played.moves, str(ended), final)


def recording_of(store: Store, turn_id: str) -> dict[str, Any]:
    """Return the arguments of a ``Replay`` of the turn."""
    turns = Turns(store.database)
    start, opened = turns.snapshot(turn_id, 0), turns.snapshot(turn_id, 1)
    model: list[Any] = []
    tools: dict[str, list[Any]] = defaultdict(list)
    others: dict[str, list[Any]] = defaultdict(list)
    for effect in _answered_requests(turns, turn_id):
        match effect.kind:
            case "CallModel":
                model.append(effect.reply)
            case "RunTool":
                tools[effect.request["call_id"]].append(effect.reply)
            case "OpenTurn" | "Persist" | "Tell" | "CloseTurn" | "ReplaceHistory":
                pass
            case kind:
                others[kind].append(effect.reply)
    settings = position_of(store, turn_id, 0).settings
    messages = turns.messages(turn_id, 1)
    return {
        "message": start["user_content"],
        "history": messages[: len(messages) - len(opened["rows"])],
        "settings": _others_than(settings, Settings.model_construct().model_dump(mode="json")),
        "opened": ({name: opened[name] for name in OPENED if opened.get(name)} | {"meter": start["meter"]}),
        "model": model,
        "tools": dict(tools),
        "others": dict(others),
    }


def _answered_requests(turns: Turns, turn_id: str) -> list[Effect]:
    """Return every answered request of a turn, in order, including those before a fork."""
    return [
        one for at in range(turns.info(turn_id).seq + 1) for one in turns.effects(turn_id, at) if one.reply
    ]


def _others_than(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from their defaults, nested as given."""
    other: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            if inner := _others_than(value, usual[name]):
                other[name] = inner
        elif value != usual.get(name):
            other[name] = value
    return other


def _check_replay(recorded: Mapping[str, Any], moves: Sequence[str], turn_id: str) -> Replayed:
    try:
        played, why = Replay(**recorded).run(), ""
    except AssertionError as error:
        played, why = Replayed([], None, None), f" ({error})"
    if played.moves != moves:
        number = next(
            (n for n, (one, other) in enumerate(zip(played.moves, moves, strict=False), 1) if one != other),
            min(len(played.moves), len(moves)) + 1,
        )
        raise ConfigError(
            f"this turn does not come out the same when it is played again: move {number} is another{why}",
            turn_id,
        )
    return played


def text_of_test(
    turn_id: str,
    asked: str,
    how: str,
    recorded: Mapping[str, Any],
    moves: list[str],
    exit_reason: str,
    final: Any,
) -> str:
    """Return the text of a test that plays ``recorded`` and expects these moves and this end. Values cannot
    inject code: only the test itself is code."""
    docstring = f"Turn {turn_id}: {asked}\n\n{how}".replace("\\", "/").replace('"', "'")
    parts = [
        f'"""{docstring}\n"""\n',
        "from fsm_agent.backtest.replay import Replay\n",
        f"MOVES = {_literal(moves)}\n",
        f"MESSAGE = {_literal(recorded['message'])}\n",
        f"HISTORY = {_literal(recorded['history'])}\n",
        f"# what the model answered, in order\nMODEL = {_literal(recorded['model'])}\n",
        f"# what the tools gave back, by call\nTOOLS = {_literal(recorded['tools'])}\n",
        f"# what else came from outside, by kind of request\nOTHERS = {_literal(recorded['others'])}\n",
        f"OPENED = {_literal(recorded['opened'])}\n",
        f"SETTINGS = {_literal(recorded['settings'])}\n",
        f"FINAL_RESPONSE = {_literal(final)}\n\n",
        _TEST.format(exit=exit_reason),
    ]
    return "\n".join(parts)


_TEST = """def test_turn() -> None:
    replay = Replay(
        message=MESSAGE, history=HISTORY, model=MODEL, tools=TOOLS, others=OTHERS, opened=OPENED,
        settings=SETTINGS
    )
    result = replay.run()
    assert result.moves == MOVES
    assert result.turn_exit_reason == {exit!r}
    assert result.final_response == FINAL_RESPONSE
    assert replay.left() == []
"""


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH, sort_dicts=False)


# ----------------------------------------------------------------------------------------------------
# Shrinking: the smallest recording that still ends the same way.


Keeps = Callable[[Replayed], bool]


def breaks(claimed: Property) -> Keeps:
    """Return a check of whether a replay breaks a property of the agent's table. Raises ``TableError`` if the
    property names something that the table does not have."""
    table = replace(TURN, properties=(claimed,))

    def keeps(one: Replayed) -> bool:
        assert one.turn is not None
        return bool(Monitor(table, one.turn).replay(one.steps))

    return keeps


LOWERED = ("max_iterations", "api_max_retries")
"""Limits to lower first: otherwise a turn that used one up would need all of its replies."""


def shrunk(recorded: Mapping[str, Any], keeps: Keeps | None = None) -> tuple[dict[str, Any], Replayed]:
    """Return a recording with as few replies as possible for which ``keeps`` still holds, and its replay. By
    default the last row and the exit reason must stay. The history is removed if it is not needed, and the
    limits in ``LOWERED`` become as low as possible; then halves, quarters, and single replies of the model
    are removed, as long as that works."""
    played = Replay(**recorded).run()
    last = played.moves[-1], played.turn_exit_reason
    keeps = keeps or (lambda one: (one.moves[-1], one.turn_exit_reason) == last)
    found = dict(recorded)
    for name in ("history", "others"):
        empty: Any = [] if name == "history" else {}
        found = _without(found, keeps, {name: empty}) or found
    found = _lower(found, keeps)
    size = max(1, len(found["model"]) // 2)
    while size:
        model, cut = found["model"], False
        for first in range(0, len(model), size):
            tried = {"model": [*model[:first], *model[first + size :]]}
            if (smaller := _without(found, keeps, tried)) is not None:
                found, cut = smaller, True
                break
        if not cut:
            size //= 2
        size = min(size, len(found["model"]))
    return _drop_unused(found)


def _lower(recorded: dict[str, Any], keeps: Keeps) -> dict[str, Any]:
    """Return the recording with the lowest limits. A lower limit drops replies from the middle: a turn that
    used up a limit ends with a few requests after it, such as for a last word."""
    for name in LOWERED:
        model = recorded["model"]
        for most, behind in product(range(1, len(model)), range(4)):
            fewer = [*model[:most], *model[max(most, len(model) - behind) :]]
            other = {"model": fewer, "settings": {**recorded["settings"], name: most}}
            if (lower := _without(recorded, keeps, other)) is not None:
                recorded = lower
                break
    return recorded


def _without(recorded: Mapping[str, Any], keeps: Keeps, other: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the recording with ``other`` and without unused replies; ``None`` if ``keeps`` fails."""
    tried = {**recorded, **other}
    try:
        smaller, played = _drop_unused(tried)
    except (AssertionError, ConfigError):
        return None
    return smaller if keeps(played) else None


def _drop_unused(recorded: Mapping[str, Any]) -> tuple[dict[str, Any], Replayed]:
    """Return a recording without its unused replies, and its replay."""
    replay = Replay(**recorded)
    made = replay.run()
    left = replay.rest()
    model = recorded["model"][: len(recorded["model"]) - left["model"]]
    found = {**recorded, "model": model}
    for part in ("tools", "others"):
        kept = {name: made[: len(made) - left[part].get(name, 0)] for name, made in recorded[part].items()}
        found[part] = {name: replies for name, replies in kept.items() if replies}
    return found, made
