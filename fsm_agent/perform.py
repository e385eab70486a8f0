"""Performing requests: the one place where a turn touches models, tools, people, clock and store."""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fsm_agent.approvals import Approvals
from fsm_agent.backends import Backend, Backends
from fsm_agent.backoff import Backoff
from fsm_agent.budget import IterationBudget
from fsm_agent.callbacks import Callbacks
from fsm_agent.live import LiveReply
from fsm_agent.masking import mask
from fsm_agent.messages import ModelReply
from fsm_agent.ports import Clock, ModelPort
from fsm_agent.recall import Recall
from fsm_agent.requests import (
    Approval,
    AskApproval,
    CallModel,
    Cancelled,
    CheckSignals,
    CloseTurn,
    Compacted,
    Done,
    DumpRequest,
    Failure,
    ModelRequest,
    NoteCompaction,
    Opened,
    OpenTurn,
    Persist,
    Prefetch,
    Prefetched,
    Preserve,
    RebuildClient,
    Rekey,
    Replaced,
    ReplaceHistory,
    RunTool,
    Saved,
    Signals,
    Spill,
    Switched,
    SwitchProvider,
    SwitchStreaming,
    SyncMemory,
    Tell,
    ToolOutcome,
    Transform,
    Transformed,
    Wait,
    Waited,
)
from fsm_agent.sessions import MemoryStore, Session
from fsm_agent.settings import Settings
from fsm_agent.signals import SignalBox
from fsm_agent.texts import one_line
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.watch import Stopwatch, race

RESULTS = "results"
"""Folder of the home directory where long tool results are saved."""


DUMPS = "dumps"
"""Folder of the home directory where requests that failed are saved."""


def save(folder: Path, name: str, text: str) -> Saved:
    """Write a file that only its owner can read; a failure is told, never raised."""
    path = folder / re.sub(r"[^\w.-]", "_", name)[-120:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        return Saved(error=f"{type(error).__name__}: {error}")
    return Saved(str(path))


@dataclass(slots=True)
class World:
    """Everything that requests are performed with."""

    settings: Settings
    clock: Clock
    backends: Backends
    tools: ToolRunner
    callbacks: Callbacks
    approvals: Approvals
    backoff: Backoff
    signals: SignalBox
    home: Path
    workdir: Path
    store: MemoryStore
    recall: Recall
    auxiliary: Backend | None = None
    budget: IterationBudget | None = None
    stale_streak: int = 0
    notices: tuple[str, ...] = ()


class Performer:
    """One turn's requests. Call it with a request, await its reply; see ``fsm_agent.requests`` for what each one means."""

    def __init__(self, world: World, session: Session, system_prompt: str, notices: Sequence[str] = ()) -> None:
        self._world, self._session, self._prompt, self._notices = world, session, system_prompt, notices
        self._performers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            OpenTurn: self._open,
            Prefetch: self._prefetch,
            Preserve: self._preserve,
            SyncMemory: self._sync_memory,
            CheckSignals: self._signals,
            CallModel: self._call_model,
            RunTool: self._run_tool,
            AskApproval: self._ask,
            Wait: self._wait,
            Rekey: self._rekey,
            RebuildClient: self._rebuild,
            SwitchProvider: self._switch,
            SwitchStreaming: self._stop_streaming,
            Persist: self._persist,
            ReplaceHistory: self._replace,
            NoteCompaction: self._note,
            Spill: self._spill,
            DumpRequest: self._dump,
            Transform: self._transform,
            Tell: self._tell,
            CloseTurn: self._close,
        }

    async def __call__(self, request: Any) -> Any:
        return await self._performers[type(request)](request)

    # Begin and end

    async def _open(self, request: OpenTurn) -> Opened:
        runtime, notice = await self._world.backends.new_turn()
        notices = (*self._world.notices, *self._notices, *((notice,) if notice else ()))
        self._world.notices = ()
        rows, workdir = tuple(self._session.rows), str(self._world.workdir)
        guard, auxiliary = self._session.guard, self._world.auxiliary
        if auxiliary is not None:
            auxiliary.port.use_key(await auxiliary.keys.key())
        return Opened(
            runtime,
            self._world.tools.specs,
            rows,
            self._prompt,
            workdir,
            notices,
            auxiliary=auxiliary.choice.runtime(primary=False) if auxiliary is not None else None,
            compacted=Compacted(guard.done, guard.blocked(self._world.clock.now())),
            review_due=self._review_due(),
        )

    def _review_due(self) -> bool:
        """Every so many turns of a session in which notes can be written."""
        every, turn_number = self._world.settings.memory.review_every, len(self._session.exits) + 1
        return every > 0 and turn_number % every == 0 and any(tool.name == "memory" for tool in self._world.tools.specs)

    async def _prefetch(self, request: Prefetch) -> Prefetched:
        return await self._world.recall.prefetch(self._session.id, request.text, self._keep)

    async def _preserve(self, request: Preserve) -> Prefetched:
        return await self._world.recall.preserve(request.rows)

    async def _sync_memory(self, request: SyncMemory) -> Done:
        self._world.recall.sync(request.user, request.answer)
        return Done()

    async def _signals(self, request: CheckSignals) -> Signals:
        box, budget = self._world.signals, self._world.budget
        return Signals(
            interrupted=box.interrupted,
            message=box.message,
            steer=box.take_steer() if request.take_steer else (),
            starved=request.charge and budget is not None and not budget.take(),
            at=self._world.clock.now(),
        )

    async def _close(self, request: CloseTurn) -> Done:
        if request.chain_exhausted:
            self._world.backends.rest_primary(self._world.settings.primary_cooldown.chain_exhausted)
        self._world.signals.clear()
        await self._world.callbacks.drain()
        return Done()

    # Model

    async def _call_model(self, request: CallModel) -> ModelReply | Failure | Cancelled:
        world = self._world
        if world.stale_streak >= world.settings.stale.giveup:
            world.stale_streak = 0
            return Failure("breaker", f"{world.settings.stale.giveup} requests in a row went silent; not sent", sent=False)
        sink = LiveReply(world.clock, world.callbacks, quiet=request.request.purpose == "summary", paragraph=request.paragraph)
        world.callbacks.emit("thinking", True)
        interrupted = world.signals.event()  # asked for after the callback, which may interrupt
        reply = Cancelled(sent=False) if interrupted.is_set() else await self._attempt(request, sink, interrupted)
        sink.close()
        if isinstance(reply, ModelReply):
            world.stale_streak = 0
        elif isinstance(reply, Failure):
            keys = world.backends.current.keys
            return replace(reply, refreshable=keys.refreshable(), other_keys=keys.others(world.clock.now()))
        return reply

    async def _attempt(self, request: CallModel, sink: LiveReply, interrupted: asyncio.Event) -> ModelReply | Failure | Cancelled:
        world, total = self._world, Stopwatch(self._world.clock)
        heartbeat = Heartbeat(world, "the model has not answered yet")
        backend = world.auxiliary if request.auxiliary and world.auxiliary is not None else world.backends.current
        work = asyncio.ensure_future(called(backend.port, request.request, sink))
        finish = await race(
            work,
            left=lambda: min(request.stale_after - sink.silence(), request.total - total.elapsed()),
            interrupted=interrupted,
            poll=world.settings.poll.control,
            tick=heartbeat.tick,
        )
        if finish != "done":
            work.cancel()
            await asyncio.wait({work})
        if finish == "interrupted":
            sink.close()
            return Cancelled(sink.shown, sink.thoughts)
        if finish == "late":
            return self._stale(request, sink)
        if work.exception() is not None:
            return Failure("local", one_line(repr(work.exception())), exception=type(work.exception()).__name__)
        return work.result()

    def _stale(self, request: CallModel, sink: LiveReply) -> ModelReply | Failure:
        """Killed by the watchdog. Text that was shown is kept and continued: asking again would show it twice."""
        self._world.stale_streak += 1
        sink.close()
        if sink.shown and not sink.tool_begun:
            return ModelReply(sink.shown, sink.thoughts, finish=None, cut=True)
        silent = f"nothing arrived for {request.stale_after:g} s"
        return Failure("stale", silent, exception="StaleStream", detail=silent)

    async def _rekey(self, request: Rekey) -> Switched:
        return await self._world.backends.rekey(request)

    async def _rebuild(self, request: RebuildClient) -> Switched:
        return await self._world.backends.rebuild()

    async def _switch(self, request: SwitchProvider) -> Switched:
        self._world.stale_streak = 0
        return await self._world.backends.switch(request.cooldown == "rate_limit", request.wider_than)

    async def _stop_streaming(self, request: SwitchStreaming) -> Switched:
        return self._world.backends.stop_streaming()

    async def _wait(self, request: Wait) -> Waited:
        """In slices of a heartbeat, so that a long wait says what it waits for; an interrupt ends it at once."""
        world = self._world
        seconds = world.backoff.seconds(request.kind, request.attempt, request.retry_after)
        interrupted = world.signals.event()
        if seconds >= 1:
            world.callbacks.emit("status", f"waiting {seconds:.0f} s: {request.why}")
        left = seconds
        while left > 0 and not interrupted.is_set():
            piece = min(left, world.settings.poll.heartbeat)
            sleeping = asyncio.ensure_future(world.clock.sleep(piece))
            finish = await race(sleeping, left=lambda: math.inf, interrupted=interrupted, poll=60)
            sleeping.cancel()
            left -= piece
            if finish == "done" and left > 0:
                world.callbacks.emit("status", f"still waiting, {left:.0f} s more: {request.why}")
        return Waited(seconds, interrupted.is_set())

    # Tools

    async def _run_tool(self, request: RunTool) -> ToolOutcome:
        world = self._world
        if world.settings.tool.delay:
            await world.clock.sleep(world.settings.tool.delay)
        world.callbacks.emit("tool_start", request.call_id, request.name, dict(request.arguments))
        world.callbacks.emit("tool_progress", "started", request.name, one_line(str(dict(request.arguments)), 120))
        outcome = await world.tools.run(request, world.signals.event())
        arguments = dict(request.arguments)
        world.callbacks.emit("tool_complete", request.call_id, request.name, arguments, outcome.text, outcome.status)
        world.callbacks.emit("tool_progress", "completed", request.name, one_line(outcome.text, 120))
        return outcome

    async def _ask(self, request: AskApproval) -> Approval:
        return await self._world.approvals.ask(request, self._world.signals.event())

    # Store and people

    async def _persist(self, request: Persist) -> Done:
        self._session.append(request.rows)
        return Done()

    async def _replace(self, request: ReplaceHistory) -> Replaced:
        if request.rotate:
            child = self._world.store.session(f"s-{uuid.uuid4().hex[:12]}")
            self._session.child(child, request.rows)
            self._session = child
        else:
            self._session.replace(request.rows)
        return Replaced(self._session.id, self._session.parent, self._world.clock.now())

    async def _note(self, request: NoteCompaction) -> Compacted:
        guard, now = self._session.guard, self._world.clock.now()
        match request.what:
            case "succeeded":
                guard.succeeded(with_model=request.with_model)
            case "nothing_gained":
                guard.nothing_gained()
            case "summary_failed":
                guard.summary_failed(request.fault, now)
            case "read":
                guard.read(over=request.over)
        return Compacted(guard.done, guard.blocked(now))

    async def _spill(self, request: Spill) -> Saved:
        return save(self._world.home / RESULTS, f"{self._session.id}-{request.call_id}.txt", request.text)

    def _keep(self, text: str) -> Saved:
        return save(self._world.home / RESULTS, f"{self._session.id}-context-{uuid.uuid4().hex[:8]}.txt", text)

    async def _dump(self, request: DumpRequest) -> Saved:
        text = mask(request.request.body.decode("utf-8", "replace"))
        return save(self._world.home / DUMPS, f"{self._session.id}-{uuid.uuid4().hex[:8]}.json", text)

    async def _transform(self, request: Transform) -> Transformed:
        answer = await self._world.callbacks.ask("transform", request.text)
        return Transformed(answer if isinstance(answer, str) and answer != request.text else None)

    async def _tell(self, request: Tell) -> Done:
        self._world.callbacks.emit(request.channel, *request.values)
        return Done()


async def called(port: ModelPort, request: ModelRequest, sink: LiveReply) -> ModelReply | Failure:
    """Let the port get ready, if it must, and call it; silence counts from then on."""
    ready = getattr(port, "ready", None)
    if ready is not None:
        await ready()
    sink.begin()
    return await port.call(request, sink)


class Heartbeat:
    """One line every so often while something is waited for: never a silent minute."""

    def __init__(self, world: World, what: str) -> None:
        self._world, self._what = world, what
        self._watch, self._told = Stopwatch(world.clock), 0.0

    def tick(self) -> None:
        elapsed = self._watch.elapsed()
        if elapsed - self._told >= self._world.settings.poll.heartbeat:
            self._told = elapsed
            self._world.callbacks.emit("status", f"{self._what} ({elapsed:.0f} s)")
