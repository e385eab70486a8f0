"""A recorded turn, played again: the same answers of the model, the tools, the people and the clock, through
the real engine.

What a debugger writes as a test uses this. The model is a ``ScriptedModel``; everything else that came from
outside is answered from the record, in the order in which it was asked for, so no tool runs and nothing
waits.
"""

from __future__ import annotations

import pprint
import tempfile
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fsm_agent.agent import Agent, Turn
from fsm_agent.conversation.effects import (
    KINDS,
    CallModel,
    Checks,
    Compacted,
    Failure,
    Opened,
    OpenTurn,
    OutputSpec,
    Runtime,
    RunTool,
    ToolSpec,
)
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.conversation.token_meter import ContextMeter
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import codec_of
from fsm_agent.fsm.pipeline import Perform
from fsm_agent.providers.scripted.model import FakeClock, ScriptedModel
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.rewind import position_of
from fsm_agent.sessions.store.rows import METER, REPLY
from fsm_agent.settings.model import Settings
from fsm_agent.support.redaction import mask_json
from fsm_agent.support.texts import one_line

RUNTIME, RUNTIMES, TOOLS = codec_of(Runtime), codec_of(tuple[Runtime, ...]), codec_of(tuple[ToolSpec, ...])
CHECKS, OUTPUT = codec_of(Checks), codec_of(OutputSpec)


class Replay:
    """``message`` and ``history`` (rows) are what the turn began with, ``opened`` what it found then:
    runtime, tools, system_prompt, workdir, auxiliary, compacted_before, has_engine, checks, output, attended,
    meter.
    ``model``: replies in order. ``tools``: outcomes by call id, several for one that ran again. ``others``:
    {kind of request: replies in order}. All as the journal has them, in JSON."""

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
        self._message, self._history, self._settings = message, list(history), dict(settings or {})
        self._opened = opened
        self._model: deque[Any] = deque(REPLY.decode(one) for one in model)
        self._tools = {
            call: deque(REPLY.decode(one) for one in outcomes) for call, outcomes in (tools or {}).items()
        }
        self._others: dict[str, deque[Any]] = defaultdict(deque)
        for kind, replies in (others or {}).items():
            self._others[kind] = deque(REPLY.decode(one) for one in replies)
        self.missing: list[str] = []

    def turn(self, home: Path) -> Turn:
        """The turn, not yet moved; ``home`` should be empty."""
        output = OUTPUT.decode(self._opened["output"]) if self._opened.get("output") else None
        served = [one for one in self._model if isinstance(one, ModelReply | Failure)]
        agent = Agent(
            ScriptedModel(served),
            toolsets=[],
            output_type=output,
            settings=self._settings,
            home=home,
            clock=FakeClock(),
            callbacks={"approval": lambda request: False} if self._opened.get("attended") else None,
            store=store_for(home, "normal"),
        )
        turn = agent.start(self._message, conversation_history=self._history or None)
        meter = METER.decode(self._opened.get("meter", {}))
        for field in fields(ContextMeter):
            setattr(turn.gate.turn.accounting.meter, field.name, getattr(meter, field.name))  # type: ignore[attr-defined]  # a TurnState
        turn.gate.attach(_Answering(self))
        return turn

    def left(self) -> list[str]:
        """Answers that were not asked for: kinds of requests, and ids of calls."""
        kinds = [kind for kind, replies in self._others.items() if replies]
        return [
            *(["CallModel"] if self._model else []),
            *kinds,
            *(call for call, outcomes in self._tools.items() if outcomes),
        ]

    async def answer(self, request: Any, perform: Perform) -> Any:
        """The recorded reply of a request, or what really happens."""
        match request:
            case OpenTurn():
                return self._found(await perform(request))
            case CallModel():
                return await self._modelled(request, perform)
            case RunTool(call_id=call_id):
                return self._next(f"call {call_id}", self._tools.get(call_id, deque()))
        kind = type(request).__name__
        return self._next(kind, self._others[kind]) if request.replayed else await perform(request)

    def _next(self, what: str, replies: deque[Any]) -> Any:
        if not replies:
            self.missing.append(what)
            raise AssertionError(f"the turn asked for something that is not in the record: {what}")
        return replies.popleft()

    async def _modelled(self, request: CallModel, perform: Perform) -> Any:
        """Through the scripted model, so that what is streamed is; the reply keeps what the credentials of
        then could do."""
        reply = self._next("CallModel", self._model)
        if isinstance(reply, ModelReply | Failure):
            await perform(replace(request, auxiliary=None))
        return reply

    def _found(self, opened: Opened) -> Opened:
        then = self._opened
        return replace(
            opened,
            runtime=RUNTIME.decode(then["runtime"]),
            tools=TOOLS.decode(then.get("tools", [])),
            system_prompt=then.get("system_prompt", ""),
            workdir=then.get("workdir", "/"),
            auxiliary=RUNTIMES.decode(then.get("auxiliary", [])),
            compacted=Compacted(int(bool(then.get("compacted_before"))), then.get("compaction_blocked", "")),
            review_due=bool(then.get("review_due")),
            unnamed=bool(then.get("unnamed")),
            engine=bool(then.get("has_engine")),
            checks=CHECKS.decode(then.get("checks", {})),
            notices=(),
        )


class _Answering:
    """Answers at the turn's pause point from the record."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def passing(self) -> None:
        """Nothing stops a replay."""

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        return await self._replay.answer(request, call_next)


# ----------------------------------------------------------------------------------------------------
# A pytest file from a recorded turn. It is run before it is given away, so what one gets is green.


LONGEST = 2_000
"""Moves of a turn that is still a test."""
OPENED = (
    "runtime", "tools", "system_prompt", "workdir", "auxiliary", "compacted_before", "compaction_blocked",
    "review_due", "unnamed", "has_engine", "checks", "output",
)  # fmt: skip
WIDTH = 120


def make_test(store: Store, turn_id: str) -> str:
    """The text of a test that plays the turn again and checks its moves and its end. Raises ``ConfigError``
    for a turn that has not ended, is too long, or does not come out the same (one that was forked with
    changes of its state, for instance)."""
    record = Record(store, turn_id)
    info = record.info
    if info.ended is None or not info.seq:
        raise ConfigError("only a turn that has ended can be made a test", turn_id)
    if info.seq > LONGEST:
        raise ConfigError("the turn is too long for a test", f"{info.seq:,} moves", f"up to {LONGEST:,}")
    recorded = mask_json(_recorded(store, record))
    moves, result = [step.row for step in record.steps()], mask_json(record.overview()["result"] or {})
    _prove(recorded, moves, turn_id)
    return _file(
        turn_id,
        one_line(mask_json(info.asked), 80),
        recorded,
        moves,
        str(info.exit),
        result.get("final_response"),
    )


def _recorded(store: Store, record: Record) -> dict[str, Any]:
    start, opened = record.snapshot(0), record.snapshot(1)
    model: list[Any] = []
    tools: dict[str, list[Any]] = defaultdict(list)
    others: dict[str, list[Any]] = defaultdict(list)
    for at in range(record.count + 1):
        visit = [one for one in record.visit(at) if one["reply"] is not None]
        for one in visit:
            if one["kind"] == "CallModel":
                model.append(one["reply"])
            elif one["kind"] == "RunTool":
                tools[one["request"]["call_id"]].append(one["reply"])
            elif (kind := KINDS.get(one["kind"])) is not None and kind.replayed:
                others[one["kind"]].append(one["reply"])
    position = position_of(store, record.turn_id, 0)
    return {
        "message": start["user_content"],
        "history": record.messages(1, 0, record.message_count(1) - len(opened["rows"]) - 1),
        "settings": _others_than(position.settings, Settings.model_construct().model_dump(mode="json")),
        "opened": (
            {name: opened[name] for name in OPENED if opened.get(name)}
            | {"meter": start["meter"], "attended": start["attended"]}
        ),
        "model": model,
        "tools": dict(tools),
        "others": dict(others),
    }


def _others_than(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not at their default, nested as they are."""
    other: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and isinstance(usual.get(name), Mapping):
            if inner := _others_than(value, usual[name]):
                other[name] = inner
        elif value != usual.get(name):
            other[name] = value
    return other


def _prove(recorded: dict[str, Any], moves: list[str], turn_id: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(**recorded)
        turn = replay.turn(Path(folder))
        turn.run()
    made = [step.row for step in turn.steps]
    if made != moves:
        number = next(
            (n for n, (one, other) in enumerate(zip(made, moves, strict=False), 1) if one != other),
            min(len(made), len(moves)) + 1,
        )
        why = f"; {replay.missing[0]} is not in the record" if replay.missing else ""
        raise ConfigError(
            f"this turn does not come out the same when it is played again: move {number} is another{why}",
            turn_id,
        )


def _file(
    turn_id: str, asked: str, recorded: dict[str, Any], moves: list[str], exit_reason: str, final: Any
) -> str:
    asked = asked.replace("\\", "/").replace('"', "'")
    how = (
        f"It ended with {exit_reason} after {len(moves)} moves. Made from its journal by the debugger of"
        " fsm-agent."
    )
    parts = [
        f'"""Turn {turn_id}: {asked}\n\n{how}\n"""\n',
        "from pathlib import Path\n\nfrom fsm_agent.debug.core.replay import Replay\n",
        f"MOVES = {_written(moves)}\n",
        f"MESSAGE = {_written(recorded['message'])}\n",
        f"HISTORY = {_written(recorded['history'])}\n",
        f"# what the model answered, in order\nMODEL = {_written(recorded['model'])}\n",
        f"# what the tools gave back, by call\nTOOLS = {_written(recorded['tools'])}\n",
        f"# what else came from outside, by kind of request\nOTHERS = {_written(recorded['others'])}\n",
        f"OPENED = {_written(recorded['opened'])}\n",
        f"SETTINGS = {_written(recorded['settings'])}\n",
        f"FINAL_RESPONSE = {_written(final)}\n\n",
        _TEST.format(exit=exit_reason),
    ]
    return "\n".join(parts)


_TEST = """def test_turn(tmp_path: Path) -> None:
    replay = Replay(
        message=MESSAGE, history=HISTORY, model=MODEL, tools=TOOLS, others=OTHERS, opened=OPENED,
        settings=SETTINGS
    )
    turn = replay.turn(tmp_path)
    result = turn.run()
    assert [step.row for step in turn.steps] == MOVES
    assert result.turn_exit_reason == {exit!r}
    assert result.final_response == FINAL_RESPONSE
    assert replay.left() == []
"""


def _written(value: Any) -> str:
    return pprint.pformat(value, width=WIDTH, sort_dicts=False)
