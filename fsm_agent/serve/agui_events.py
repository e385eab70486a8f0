"""A run of AG-UI, made of a turn's events: the protocol's events, in an order that its clients accept.

``RunTranslator`` is pure: it receives served events, and tracks the client's messages, so that it can send
them whole where the protocol requires it, and retract what a dead process sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ag_ui.core import (
    PROTOCOL_VERSION,
    AssistantMessage,
    BaseEvent,
    CustomEvent,
    FunctionCall,
    Interrupt,
    Message,
    MessagesSnapshotEvent,
    ReasoningEndEvent,
    ReasoningMessageContentEvent,
    ReasoningMessageEndEvent,
    ReasoningMessageStartEvent,
    ReasoningStartEvent,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    StepFinishedEvent,
    StepStartedEvent,
    SubagentErrorEvent,
    SubagentFinishedEvent,
    SubagentFinishedOutcome,
    SubagentFinishedSuspendedOutcome,
    SubagentStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCall,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
    ToolMessage,
)

from fsm_agent.conversation.parts import text_only
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.dispatch.follow import Place, ServedEvent
from fsm_agent.runtime.events import (
    InterimText,
    Named,
    ReasoningText,
    StatusText,
    StreamDelta,
    ToolComplete,
    ToolStart,
    Transition,
    Voided,
)
from fsm_agent.serve.agui_messages import arguments_of_call, interrupt_of
from fsm_agent.sessions.store.pending import Pending

Events = Iterator[BaseEvent]
CHILD = "task"
"""Name of a subagent: a delegated task has a goal, and no other name."""
LASTING = Place(-1)
"""The place of a message that is never retracted."""


class RunTranslator:
    """One run. ``messages``: those that the client has before the turn's events. ``reasoning``: whether the
    client requested the model's reasoning."""

    def __init__(
        self, thread_id: str, run_id: str, messages: Sequence[Message] = (), *, reasoning: bool = False
    ) -> None:
        self._thread, self._run, self._reasoning = thread_id, run_id, reasoning
        self._messages: list[Message] = list(messages)
        self._births: dict[str, Place] = {}
        self._used = {one.id for one in messages} | set(_call_ids(messages))
        self._calls: dict[str, str] = {}  # sent calls without a result, by the ids of the engine
        self._named: dict[str, str] = {}  # the ids of the engine, of all sent calls
        self._text: AssistantMessage | None = None
        self._thought = ""
        self._answer: list[AssistantMessage] = []  # texts since the last tool call
        self._step = ""
        self._children: dict[str, str] = {}  # running subagents, and the step of each
        self._over: set[str] = set()
        self._again = False
        self._state: dict[str, Any] = {
            "turn": "", "state": "", "moves": 0, "counters": {}, "move": None, "status": "running"
        }  # fmt: skip

    # The run

    def begin(self, *, snapshot: bool = False) -> Events:
        """Open the run. ``snapshot``: the client lacks the messages that this run begins with. Events fed
        before count as sent by an earlier run."""
        for _ in self._close():
            pass
        self._over.clear()
        self._again = bool(self._state["moves"])
        self._state["status"] = "running"
        yield RunStartedEvent(thread_id=self._thread, run_id=self._run, protocol_version=PROTOCOL_VERSION)
        if snapshot:
            yield self._all()
        yield self._whole_state()
        if self._step:
            yield StepStartedEvent(step_name=self._step)

    def feed(self, one: ServedEvent) -> Events:
        """Yield the protocol's events for an event of the turn, if it has any."""
        place = Place.read(one.id.rpartition(":")[2])
        match one.event.values:
            case Transition() as move:
                yield from self._moved(one.turn, place, move)
            case StreamDelta(text=None):
                yield from self._end_text()
            case StreamDelta(text=str(text)):
                yield from self._say(f"{one.turn}-{place.recorded}", place.recorded, text)
            case InterimText(text=text):
                if _bare(text) != _bare(self._answer_text()):
                    yield from self._say(f"{one.turn}-{place.recorded}", place.recorded, text)
                yield from self._end_text()
            case ReasoningText(text=text) if self._reasoning:
                yield from self._think(f"{one.turn}-{place.recorded}-thought", text)
            case ToolStart(call_id, name, arguments):
                text = json.dumps(arguments, ensure_ascii=False, default=str)
                yield from self._call(call_id, name, text, place.recorded, f"{one.turn}-{place.seq}-calls")
            case ToolComplete() as done:
                yield from self._complete(one.turn, place, done)
            case StatusText(text=text):
                yield CustomEvent(name="status", value=text)
            case Named(name=name, data=data) if name.startswith("child:"):
                yield from self._child(name, data)
            case Voided(after=after):
                yield from self._void(Place.read(after).recorded)

    def end(self, result: TurnResult) -> Events:
        """Close the run of a turn that has ended."""
        yield from self._end_text()
        yield from self._end_thought()
        yield from self._refused(result.messages)
        yield from self._amend(result)
        yield from self._close(final=True)
        yield self._status("ended")
        usage = None if self._again else _usage(result)
        if result.failed:
            message = result.error or str(result.turn_exit_reason)
            yield RunErrorEvent(message=message, code=str(result.turn_exit_reason), usage=usage)
            return
        outcome: RunFinishedOutcome = (
            RunFinishedCancelledOutcome() if result.interrupted else RunFinishedSuccessOutcome()
        )
        about = {
            "turn": result.turn_id, "text": result.final_response, "exit": str(result.turn_exit_reason),
            "partial": result.partial,
        }  # fmt: skip
        yield RunFinishedEvent(
            thread_id=self._thread, run_id=self._run, result=about, outcome=outcome, usage=usage
        )

    def suspend(self, waits: Sequence[Pending], rows: Sequence[Mapping[str, Any]]) -> Events:
        """Close the run of a turn that waits for answers. ``rows``: those of the session, which contain the
        calls in question."""
        yield from self._end_text()
        yield from self._end_thought()
        yield from self._refused(rows)
        yield from self.propose(waits, rows)
        yield from self._close(final=True, suspended=True)
        self._state["status"] = "suspended"
        yield self._whole_state()
        yield self._all()
        asked = [self._interrupt(one) for one in waits]
        yield RunFinishedEvent(
            thread_id=self._thread, run_id=self._run, outcome=RunFinishedInterruptOutcome(interrupts=asked)
        )

    def propose(self, waits: Sequence[Pending], rows: Sequence[Mapping[str, Any]]) -> Events:
        """Send the calls that wait for an approval and have not begun."""
        for one in waits:
            if one.turn != self._state["turn"] or not one.call or one.call in self._calls:
                continue
            given = arguments_of_call(rows, one.call)
            yield from self._call(one.call, one.tool, given, LASTING, f"{one.turn}-{one.seq}-calls")

    def finish(self) -> Events:
        """Close a run that had nothing to do."""
        yield from self._close(final=True)
        yield self._status("idle")
        yield RunFinishedEvent(thread_id=self._thread, run_id=self._run, outcome=RunFinishedSuccessOutcome())

    def fail(self, message: str, code: str) -> Events:
        """Close the run with an error."""
        yield from self._close(final=True)
        yield RunErrorEvent(message=message, code=code)

    # Moves

    def _moved(self, turn: str, place: Place, move: Transition) -> Events:
        yield from self._end_text()
        yield from self._end_thought()
        handed_over = self._state["turn"] not in ("", turn)
        if handed_over:
            yield from self._end_step()
            self._state["counters"] = {}
        self._state["turn"] = turn
        if not self._step:
            yield StepStartedEvent(step_name=move.source)
            self._step = move.source
        yield from self._end_step()
        self._step = move.dest
        yield StepStartedEvent(step_name=move.dest)
        counters = {**self._state["counters"], **move.counters}
        edge = {"source": move.source, "event": move.event, "dest": move.dest}
        self._state |= {"state": move.dest, "moves": place.seq, "move": edge}
        changed = {name: now for name, now in counters.items() if self._state["counters"].get(name) != now}
        self._state["counters"] = counters
        if handed_over:
            yield self._whole_state()
            return
        fields = ("turn", "state", "moves", "move")
        patch = [{"op": "replace", "path": f"/{name}", "value": self._state[name]} for name in fields]
        patch += [
            {"op": "add", "path": f"/counters/{_token(name)}", "value": now} for name, now in changed.items()
        ]
        yield StateDeltaEvent.model_validate({"delta": patch})

    def _end_step(self) -> Events:
        if self._step:
            yield StepFinishedEvent(step_name=self._step)
            self._step = ""

    def _whole_state(self) -> BaseEvent:
        return StateSnapshotEvent(snapshot={**self._state, "counters": {**self._state["counters"]}})

    def _status(self, status: Literal["ended", "idle"]) -> BaseEvent:
        self._state["status"] = status
        patch = [{"op": "replace", "path": "/status", "value": status}]
        return StateDeltaEvent.model_validate({"delta": patch})

    # Text

    def _say(self, name: str, birth: Place, text: str) -> Events:
        yield from self._end_thought()
        if self._text is None:
            text = text.lstrip("\n")
            if not text:
                return
            self._text = AssistantMessage(id=self._fresh(name), content="")
            self._answer.append(self._text)
            self._keep(self._text, birth)
            yield TextMessageStartEvent(message_id=self._text.id, role="assistant")
        self._text.content = (self._text.content or "") + text
        yield TextMessageContentEvent(message_id=self._text.id, delta=text)

    def _end_text(self) -> Events:
        if self._text is not None:
            yield TextMessageEndEvent(message_id=self._text.id)
            self._text = None

    def _answer_text(self) -> str:
        return "".join(one.content or "" for one in self._answer)

    def _amend(self, result: TurnResult) -> Events:
        """Send the answer if it was not streamed, or differs from what was streamed."""
        words = words_of_model(result)
        if not words.strip() or _bare(words) == _bare(self._answer_text()):
            return
        if self._answer:
            first, *others = self._answer
            first.content = words
            self._messages = [one for one in self._messages if one not in others]
            yield self._all()
        else:
            yield from self._say(f"{result.turn_id}-answer", LASTING, words)
            yield from self._end_text()

    def _think(self, name: str, text: str) -> Events:
        if not self._thought:
            self._thought = self._fresh(name)
            yield ReasoningStartEvent(message_id=self._thought)
            yield ReasoningMessageStartEvent(message_id=self._thought, role="reasoning")
        yield ReasoningMessageContentEvent(message_id=self._thought, delta=text)

    def _end_thought(self) -> Events:
        if self._thought:
            yield ReasoningMessageEndEvent(message_id=self._thought)
            yield ReasoningEndEvent(message_id=self._thought)
            self._thought = ""

    # Calls

    def _call(self, call: str, name: str, arguments: str, birth: Place, parent: str) -> Events:
        if call in self._calls:
            return
        yield from self._end_text()
        yield from self._end_thought()
        shown = self._calls[call] = self._fresh(call)
        self._named[shown] = call
        holder = self._answer[-1] if self._answer else self._holder(parent, birth)
        tool_call = ToolCall(id=shown, function=FunctionCall(name=name, arguments=arguments))
        holder.tool_calls = [*(holder.tool_calls or ()), tool_call]
        yield ToolCallStartEvent(tool_call_id=shown, tool_call_name=name, parent_message_id=holder.id)
        yield ToolCallArgsEvent(tool_call_id=shown, delta=arguments)
        yield ToolCallEndEvent(tool_call_id=shown)

    def _holder(self, parent: str, birth: Place) -> AssistantMessage:
        for one in self._messages:
            if one.id == parent and isinstance(one, AssistantMessage):
                return one
        message = AssistantMessage(id=parent)
        self._used.add(parent)
        self._keep(message, birth)
        return message

    def _complete(self, turn: str, place: Place, done: ToolComplete) -> Events:
        if done.call_id not in self._calls:
            arguments = json.dumps(done.arguments, ensure_ascii=False, default=str)
            parent = f"{turn}-{place.seq}-calls"
            yield from self._call(done.call_id, done.name, arguments, place.recorded, parent)
        self._answer = []
        yield self._result(done.call_id, done.result, done.status, place.recorded)

    def _result(self, call: str, content: str, status: str, birth: Place) -> BaseEvent:
        shown = self._calls.pop(call)
        name, about = self._fresh(f"{shown}-result"), {"status": status}
        message = ToolMessage(id=name, tool_call_id=shown, content=content, metadata=about)
        self._keep(message, birth)
        self._messages.remove(message)
        self._messages.insert(self._place_of_result(shown), message)
        return ToolCallResultEvent(
            message_id=name, tool_call_id=shown, content=content, role="tool", metadata=about
        )

    def _place_of_result(self, shown: str) -> int:
        """Return the index after the call and its existing results: where clients put a result."""
        place = next(n for n, one in enumerate(self._messages) if shown in _call_ids([one])) + 1
        while place < len(self._messages) and isinstance(self._messages[place], ToolMessage):
            place += 1
        return place

    def _refused(self, rows: Sequence[Mapping[str, Any]]) -> Events:
        """Send the results of calls that needed approval and did not run: only the session has them."""
        results = {str(row.get("tool_call_id")): row for row in rows if row.get("role") == "tool"}
        for call in [one for one in self._calls if one in results]:
            yield self._result(call, text_only(results[call].get("content")), "denied", LASTING)

    # Subagents

    def _child(self, event: str, data: Mapping[str, Any]) -> Events:
        child = str(data.get("session_id") or "")
        if event == "child:start" and child not in self._children and child not in self._over:
            self._children[child] = ""
            above = [*self._calls.values()]
            yield SubagentStartedEvent(
                subagent_run_id=child, name=CHILD, description=str(data.get("goal", "")),
                parent_tool_call_id=above[0] if len(above) == 1 else None,
            )  # fmt: skip
        elif child not in self._children:
            return
        elif event == "child:tool":
            yield from self._child_step(child, str(data.get("name", "")))
        elif event in ("child:end", "child:suspended"):
            yield from self._end_child(child, data, suspended=event == "child:suspended")

    def _child_step(self, child: str, name: str) -> Events:
        if before := self._children[child]:
            yield StepFinishedEvent(step_name=before, subagent_run_id=child)
        self._children[child] = name
        if name:
            yield StepStartedEvent(step_name=name, subagent_run_id=child)

    def _end_child(self, child: str, data: Mapping[str, Any], *, suspended: bool) -> Events:
        yield from self._child_step(child, "")
        del self._children[child]
        self._over.add(child)
        status = "" if suspended else str(data.get("status") or "completed")
        if status in ("failed", "interrupted"):
            yield SubagentErrorEvent(
                subagent_run_id=child, message=str(data.get("error") or status), code=status
            )
            return
        outcome: SubagentFinishedOutcome | None = SubagentFinishedSuspendedOutcome() if suspended else None
        yield SubagentFinishedEvent(subagent_run_id=child, outcome=outcome)

    # What the client has

    def _keep(self, message: Message, birth: Place) -> None:
        self._messages.append(message)
        self._births[message.id] = birth

    def _fresh(self, name: str) -> str:
        """Return an id that is unused in this conversation."""
        found, number = name, 1
        while found in self._used:
            number += 1
            found = f"{name}~{number}"
        self._used.add(found)
        return found

    def _all(self) -> BaseEvent:
        return MessagesSnapshotEvent(messages=[one.model_copy(deep=True) for one in self._messages])

    def _void(self, after: Place) -> Events:
        """Retract the messages after a place of the journal."""
        yield from self._end_text()
        yield from self._end_thought()
        void = {name for name, birth in self._births.items() if birth >= after}
        if not void:
            return
        kept = [one for one in self._messages if one.id not in void]
        removed = [one for one in self._messages if one.id in void]
        for one in removed:
            del self._births[one.id]
        lost = {*_call_ids(removed)}
        self._calls = {call: shown for call, shown in self._calls.items() if shown not in lost}
        answered = {one.tool_call_id for one in kept if isinstance(one, ToolMessage)}
        for shown in set(_call_ids(kept)) - answered - set(self._calls.values()):
            if shown in self._named:
                self._calls[self._named[shown]] = shown
        self._answer = [one for one in self._answer if one in kept]
        self._messages = kept
        yield self._all()

    def _interrupt(self, item: Pending) -> Interrupt:
        shown = self._calls.get(item.call) if item.turn == self._state["turn"] else None
        child = None if item.turn == self._state["turn"] else item.session
        return interrupt_of(item, shown, child)

    def _close(self, *, final: bool = False, suspended: bool = False) -> Events:
        """End everything that is open; in a run that continues, the step stays open."""
        yield from self._end_text()
        yield from self._end_thought()
        for child in list(self._children):
            yield from self._end_child(child, {}, suspended=suspended or not final)
        if final:
            yield from self._end_step()


def _call_ids(messages: Sequence[Message]) -> Iterator[str]:
    for one in messages:
        if isinstance(one, AssistantMessage):
            yield from (call.id for call in one.tool_calls or ())


def _bare(text: str) -> str:
    return "".join(text.split())


def _token(name: str) -> str:
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _usage(result: TurnResult) -> list[TokenUsage] | None:
    if not result.usage_known:
        return None
    return [
        TokenUsage(
            provider=result.provider, model=result.model, input_tokens=result.prompt_tokens,
            output_tokens=result.output_tokens, total_tokens=result.prompt_tokens + result.output_tokens,
            reasoning_tokens=result.reasoning_tokens, cached_input_tokens=result.cache_read_tokens,
            cache_write_input_tokens=result.cache_write_tokens,
        )
    ]  # fmt: skip
