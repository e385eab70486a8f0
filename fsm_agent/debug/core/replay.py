"""A recorded turn, played again: the same answers of the model, the tools, the people and the clock, through
the real engine.

What a debugger writes as a test uses this. The model is a ``ScriptedModel``; everything else that came from
outside is answered from the record, in the order in which it was asked for, so no tool runs and nothing
waits."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fsm_agent.agent import Agent, Turn
from fsm_agent.conversation.effects import (
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
from fsm_agent.fsm.codec import codec_of
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pipeline import Perform
from fsm_agent.providers.scripted.clock import FakeClock
from fsm_agent.providers.scripted.model import ScriptedModel
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.rows import METER, REPLY

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
    """Stands at the gate of the turn."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def passing(self) -> None:
        """Nothing stops a replay."""

    async def performing(self, request: Any, turn: Any, call_next: Perform) -> Any:
        return await self._replay.answer(request, call_next)

    def happened(self, what: Exchange | Step) -> None:
        """The steps are the turn's own."""

    def closed(self, ended: bool) -> None:
        """Nothing to leave."""
