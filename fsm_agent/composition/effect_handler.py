"""Performing requests: the one place where a turn touches models, tools, people, clock and store."""

from __future__ import annotations

import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.composition.model_caller import ModelCaller
from fsm_agent.composition.services import DUMPS, RESULTS, Services, save
from fsm_agent.conversation.effects import (
    Approval,
    AskApproval,
    CallModel,
    CheckSignals,
    CloseTurn,
    Compacted,
    Done,
    DumpRequest,
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
    ResolvedPaths,
    ResolvePaths,
    Runtime,
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
    ToolSpec,
    Transform,
    Transformed,
    Wait,
)
from fsm_agent.runtime.authority import Admission
from fsm_agent.runtime.budget import IterationBudget, SpentBudget, tree_budget
from fsm_agent.sessions.session import Session
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.toolsets.agent import ToolContext, bridged

UNASKED = "nobody said yes to it"
FROM_A_FILE = (
    "this turn came in a file: it goes on with the model, the tools and the rules of this agent, and every"
    " call that does more than read here is asked about"
)
DENIED = "denied: {why}. Do not try the same thing in other words; ask the user or go on without."


class EffectHandler:
    """One turn's requests. Call it with a request, await its reply; ``fsm_agent.conversation.effects`` says
    what each one means. ``session`` is the one that the turn is in, which compactions change; ``turn_id`` is
    empty where requests are performed outside of a turn. ``imported``: the turn came in a file."""

    def __init__(
        self, services: Services, session: Session, turn_id: str = "", *, imported: bool = False
    ) -> None:
        self._services, self.session, self._turn_id = services, session, turn_id
        self._prompt: str = ""
        self._notices: Sequence[str] = ()
        self._imported, self._admission = imported, Admission()
        self._approvals = services.approvals.for_imported() if imported else services.approvals
        self._budget = _budget_of(services, turn_id)
        self._attempts = ModelCaller(
            services,
            lambda: len(self.session.rows),
            None if self._budget is None else self._budget.requests,
        )
        self._performers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            OpenTurn: self._open,
            Prefetch: self._prefetch,
            Preserve: self._preserve,
            SyncMemory: self._sync_memory,
            CheckSignals: self._signals,
            CallModel: self._attempts.call,
            RunTool: self._run_tool,
            AskApproval: self._ask,
            ResolvePaths: self._resolve,
            Wait: self._attempts.wait,
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

    def __call__(self, request: Any) -> Awaitable[Any]:
        return self._performers[type(request)](request)

    def posed(self, question: AskApproval) -> AskApproval:
        """Return the question as a person is asked it."""
        return self._approvals.posed(question)

    async def answered(self, question: AskApproval, answer: Approval, *, by_debugger: bool) -> None:
        """A person, a rule or a debugger has answered: what was allowed may be run. An answer of a debugger
        is remembered as any person's is."""
        if by_debugger:
            await self._approvals.remember(question, answer, self.session.id)
        self._admission.answered(question, answer)

    @property
    def departed(self) -> int:
        """Requests to models that left, as their wires say."""
        return self._attempts.departed

    # Begin and end

    def prompted(self, system_prompt: str, notices: Sequence[str] = ()) -> None:
        """What the turn is opened with, made when its session is held."""
        self._prompt, self._notices = system_prompt, notices

    async def _open(self, request: OpenTurn) -> Opened:
        runtime, notice = await self._services.backends.new_turn()
        missing = await self._services.tools.ready(self._services.signals.event())
        notices = (*self._services.notices, *self._notices, *((notice,) if notice else ()), *missing)
        self._services.notices = ()
        rows, workdir = tuple(self.session.rows), str(self._services.workdir)
        guard = self.session.guard
        await self._ready_auxiliary()
        return Opened(
            runtime,
            self._tools(),
            rows,
            self._prompt,
            workdir,
            notices,
            auxiliary=self._auxiliary(),
            compacted=Compacted(guard.done, guard.blocked(self._services.clock.now())),
            review_due=self._review_due(),
            news=await self._news(opening=True),
            silences=self._services.silences,
        )

    def _tools(self) -> tuple[ToolSpec, ...]:
        services = self._services
        specs = (*services.tools.specs, *services.agent_tools.specs)
        specs = self._approvals.looked_at(specs, services.tools.outside_names, services.tools.confinements)
        self._admission.opened(specs)
        return bridged(specs, services.tools.late_names, services.settings.tool.bridge_above)

    def _auxiliary(self) -> tuple[Runtime, ...]:
        return tuple(backend.choice.runtime(primary=False) for backend in self._services.auxiliary)

    async def _news(self, *, opening: bool = False) -> tuple[str, ...]:
        """What is to be told of tasks in the background."""
        background, window = self._services.background, self._services.backends.runtime().window
        if background is None:
            return ()
        return await background.news(self.session, self._turn_id, window, opening=opening)

    async def reopen(self, before: Runtime) -> Opened:
        """What ``OpenTurn`` does, for a turn that was opened in another process: what it goes on with. It ran
        on ``before``, which is looked for in the chain, unless the turn came in a file."""
        backends = self._services.backends
        runtime, notice = await (backends.new_turn() if self._imported else backends.resume(before))
        await self._ready_auxiliary()
        missing = await self._services.tools.ready(self._services.signals.event())
        for line in (*self._notices, FROM_A_FILE if self._imported else "", notice, *missing):
            if line:
                self._services.callbacks.emit("status", line)
        if self._services.background is not None:
            self._services.background.resumed()
        return Opened(
            runtime, self._tools(), workdir=str(self._services.workdir), auxiliary=self._auxiliary()
        )

    def spent_before(self, iterations: int, attempts: int, below: SpentBudget) -> None:
        """What a turn that goes on in this process has taken of the budgets of its tree already, and what
        those ``below`` it have."""
        given, tree = self._services.budget, self._budget
        if tree is None or tree is given:
            return
        shared = given is None and self._services.settings.delegation.budget != "independent"
        own = SpentBudget(iterations if given is None else 0, attempts)
        tree.settle(own, below if shared else below._replace(iterations=0))

    async def _ready_auxiliary(self) -> None:
        for backend in self._services.auxiliary:
            backend.port.use_key(await backend.keys.key())

    def _review_due(self) -> bool:
        """Every so many turns of a session in which notes can be written."""
        every, turn_number = self._services.settings.memory.review_every, self.session.turns + 1
        return every > 0 and turn_number % every == 0 and self._services.agent_tools.handles("memory")

    async def _prefetch(self, request: Prefetch) -> Prefetched:
        return await self._services.recall.prefetch(self.session.id, request.text, self._keep)

    async def _preserve(self, request: Preserve) -> Prefetched:
        return await self._services.recall.preserve(request.rows)

    async def _sync_memory(self, request: SyncMemory) -> Done:
        self._services.recall.sync(request.user, request.answer)
        return Done()

    async def _signals(self, request: CheckSignals) -> Signals:
        box, budget = self._services.signals, self._budget
        return Signals(
            interrupted=box.interrupted,
            message=box.message,
            steer=box.take_steer() if request.take_steer else (),
            starved=request.charge and budget is not None and not budget.take(),
            at=self._services.clock.now(),
            news=await self._news() if request.take_steer else (),
        )

    async def _close(self, request: CloseTurn) -> Done:
        self._services.silences = request.silences
        if request.chain_exhausted:
            self._services.backends.rest_primary(self._services.settings.primary_cooldown.chain_exhausted)
        self._services.signals.clear()
        await self._services.callbacks.drain()
        return Done()

    # Model

    async def _rekey(self, request: Rekey) -> Switched:
        return await self._services.backends.rekey(request)

    async def _rebuild(self, request: RebuildClient) -> Switched:
        return await self._services.backends.rebuild()

    async def _switch(self, request: SwitchProvider) -> Switched:
        return await self._services.backends.switch(request.cooldown == "rate_limit", request.wider_than)

    async def _stop_streaming(self, request: SwitchStreaming) -> Switched:
        return self._services.backends.stop_streaming()

    # Tools

    async def _run_tool(self, request: RunTool) -> ToolOutcome:
        services = self._services
        if services.settings.tool.delay:
            await services.clock.sleep(services.settings.tool.delay)
        services.callbacks.emit("tool_start", request.call_id, request.name, dict(request.arguments))
        self._progress("started", request, lambda: str(dict(request.arguments)))
        outcome = await self._changed(request, await self._ran(request))
        arguments = dict(request.arguments)
        services.callbacks.emit(
            "tool_complete", request.call_id, request.name, arguments, outcome.text, outcome.status
        )
        self._progress("completed", request, lambda: outcome.text)
        return outcome

    def _progress(self, what: str, request: RunTool, preview: Callable[[], str]) -> None:
        if self._services.callbacks.hears("tool_progress"):
            self._services.callbacks.emit("tool_progress", what, request.name, one_line(preview(), 120))

    async def _ran(self, request: RunTool) -> ToolOutcome:
        """By the agent itself for its own tools, and by the registry for all others: this is the only place
        that chooses."""
        services, interrupted = self._services, self._services.signals.event()
        why = "" if self._admission.admits(request) else UNASKED
        if self._admission.free(request.name):
            why = await self._approvals.before(request.name, request.arguments, interrupted)
        if why:
            return ToolOutcome(request.call_id, "denied", DENIED.format(why=why))
        if not services.agent_tools.handles(request.name):
            return await services.tools.run(request, interrupted)
        window = services.backends.runtime().window
        scene = ToolContext(self.session, self._turn_id, request.call_id, interrupted, self._budget, window)
        return await services.agent_tools.run(request, scene)

    async def _changed(self, request: RunTool, outcome: ToolOutcome) -> ToolOutcome:
        """What an ``after_tool`` callback makes of a result; one that fails leaves it as it is."""
        callbacks = self._services.callbacks
        if not callbacks.has("after_tool"):
            return outcome
        answer = await callbacks.ask(
            "after_tool", request.name, dict(request.arguments), outcome.text, outcome.status
        )
        return replace(outcome, text=answer) if isinstance(answer, str) else outcome

    async def _ask(self, request: AskApproval) -> Approval:
        return await self._approvals.ask(request, self._services.signals.event(), self.session.id)

    async def _resolve(self, request: ResolvePaths) -> ResolvedPaths:
        return await in_daemon_thread(_resolved, request)

    # Store and people

    async def _persist(self, request: Persist) -> Done:
        self.session.append(request.rows)
        return Done()

    async def _replace(self, request: ReplaceHistory) -> Replaced:
        if request.rotate:
            child = self._services.store.new_session()
            self.session.child(child, request.rows)
            self.session = child
        else:
            self.session.replace(request.rows)
        return Replaced(self.session.id, self.session.parent, self._services.clock.now())

    async def _note(self, request: NoteCompaction) -> Compacted:
        guard, now = self.session.guard, self._services.clock.now()
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
        return save(self._services.home / RESULTS, f"{self.session.id}-{request.call_id}.txt", request.text)

    def _keep(self, text: str) -> Saved:
        return save(
            self._services.home / RESULTS, f"{self.session.id}-context-{uuid.uuid4().hex[:8]}.txt", text
        )

    async def _dump(self, request: DumpRequest) -> Saved:
        text = mask(request.request.body.decode("utf-8", "replace"))
        return save(self._services.home / DUMPS, f"{self.session.id}-{uuid.uuid4().hex[:8]}.json", text)

    async def _transform(self, request: Transform) -> Transformed:
        answer = await self._services.callbacks.ask("transform", request.text)
        return Transformed(answer if isinstance(answer, str) and answer != request.text else None)

    async def _tell(self, request: Tell) -> Done:
        self._services.callbacks.emit(request.channel, *request.values)
        return Done()


def _resolved(request: ResolvePaths) -> ResolvedPaths:
    return ResolvedPaths(tuple(_real(request.workdir, path) for path in request.paths))


def _real(workdir: str, path: str) -> str:
    """Where it leads; a text that cannot be a path, as it is: its tool refuses it."""
    try:
        return os.path.realpath(os.path.join(workdir, path))
    except (OSError, ValueError):
        return path


def _budget_of(services: Services, turn_id: str) -> IterationBudget | None:
    """What a turn shares with others: with its children, if it can have any (DIS-01), under what it was
    given. A child was given the budget of its tree."""
    given, trees = services.budget, services.store.trees
    if (given is not None and given.requests is not None) or not services.agent_tools.handles(
        "delegate_task"
    ):
        return given
    return trees.get(turn_id) or trees.setdefault(turn_id, tree_budget(services.settings, given))
