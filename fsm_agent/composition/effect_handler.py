"""Performs requests: the only place where a turn touches models, tools, people, clock and store."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fsm_agent.approvals.service import Admission, Waiting
from fsm_agent.composition.model_caller import ModelCaller
from fsm_agent.composition.services import DUMPS, Services
from fsm_agent.conversation.arguments import signature
from fsm_agent.conversation.effects import (
    FINAL,
    AnswerProgram,
    Approval,
    AskApproval,
    AskExtension,
    CallModel,
    Checks,
    CheckSignals,
    CloseTurn,
    Compacted,
    Done,
    DumpRequest,
    Lesson,
    NoteCompaction,
    Opened,
    OpenTurn,
    Persist,
    ProgramAsks,
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
    Tell,
    ToolOutcome,
    ToolSpec,
    Wait,
)
from fsm_agent.conversation.parts import text_only
from fsm_agent.extension import Extension, Part, PointRequests
from fsm_agent.features import RESULTS, save
from fsm_agent.features.built_in import publish_progress
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.fsm.runner import Layer, Perform, Pipeline
from fsm_agent.providers.choose import GUESSES
from fsm_agent.request import NotYet
from fsm_agent.runtime.budget import IterationBudget, SpentBudget, tree_budget
from fsm_agent.runtime.events import (
    CHANNELS,
    StatusText,
    ToolProgress,
    ToolStart,
    Transition,
)
from fsm_agent.sessions import Session
from fsm_agent.sessions.store.fence import NO_TURN, Fence
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support.redaction import mask
from fsm_agent.support.threads import in_daemon_thread
from fsm_agent.tools import RunContext
from fsm_agent.tools.result import answer_result
from fsm_agent.tools.runner import NOWHERE, UNKNOWN_EFFECT
from fsm_agent.toolsets.agent import ToolContext, apply_bridge
from fsm_agent_states.logic.running import DENIED, PROGRAMMATIC
from fsm_agent_states.turn import TurnState

if TYPE_CHECKING:
    from fsm_agent.features.answers import Answers

Ended = ToolOutcome | ProgramAsks | NotYet
NOT_TAKEN = "not taken: call it alone when all others have their results"
UNASKED = "it was not approved"
FROM_A_FILE = (
    "this turn came in a file: it continues with this agent's model, tools, and rules, and every"
    " call that does more than read here needs approval"
)
NO_PROGRAM_WAITS = "its result comes later, and a program cannot wait for that. Do not call it again."
INTERRUPTED_WHILE_WAITING = f"The user interrupted before the result came. {UNKNOWN_EFFECT}"


class EffectHandler:
    """Performs the requests of one turn through its ``pipeline``; ``fsm_agent.conversation.effects`` defines
    them. ``session``: the turn's current session, which compactions change. ``fence``: the turn's right to
    write, by default unrestricted, for requests outside of a turn. ``imported``: the turn was imported from a
    file. ``cut_off``: keys of calls that were running when another process ended. ``answers``: checks a typed
    answer. ``points``: performs requests of extensions. ``features``: those of this turn, if they differ from
    the agent's."""

    def __init__(
        self,
        services: Services,
        turn: TurnState,
        session: Session,
        fence: Fence = NO_TURN,
        *,
        imported: bool = False,
        scene: Callable[[], RunContext[Any]] = lambda: NOWHERE,
        answers: Answers | None = None,
        features: Sequence[Extension] = (),
    ) -> None:
        self.turn, self.fence, turn_id = turn, fence, fence.turn_id
        self._services, self.session, self._turn_id, self.scene = services, session, turn_id, scene
        self.settings, self.imported = services.settings, imported
        self._prompt: str = ""
        self.cut_off: frozenset[str] = frozenset()
        self._notices: Sequence[str] = ()
        self._admission = Admission()
        self._own_answers: dict[str, Approval | NotYet] = {}  # by call; without a debugger's
        self._approvals = services.approvals.for_imported() if imported else services.approvals
        self.budget = _budget_of(services, turn_id)
        suspends = bool(turn_id) and services.settings.approval.unanswered == "suspend"
        self._waiting = Waiting(services.pending, fence, suspends)
        self.answers = answers
        self.bugs: list[BaseException] = []
        own = () if self.answers is None else (self.answers,)
        features = features or services.features
        self._parts = (*(one.in_turn(self) for one in features), *own)
        parts = zip(features, self._parts, strict=False)
        asking = {one.name: part for one, part in parts if type(one).asks is not Extension.asks}
        self.points = PointRequests(services.asks, asking, self)
        self._attempts = ModelCaller(
            services,
            lambda: len(self.session.rows),
            None if self.budget is None else self.budget.requests,
            None if self.answers is None else self.answers.partial,
        )
        self.handlers: dict[type, Perform] = {
            OpenTurn: self._open,
            CheckSignals: self._signals,
            CallModel: self._attempts.call,
            RunTool: self._run_tool,
            AnswerProgram: self._answer_program,
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
            Tell: self._tell,
            CloseTurn: self._close,
            AskExtension: partial(self.points.perform, turn),
        }
        for part in reversed(self._parts):  # of two parts, the outer one performs it
            self.handlers.update(part.performs)
        if timed := [part for part in self._parts if type(part).seconds_left is not Part.seconds_left]:
            self._attempts.left = lambda: min(part.seconds_left() for part in timed)
        self._bringing = [part for part in self._parts if type(part).news is not Part.news]
        self._stepping = [part for part in self._parts if type(part).stepping is not Part.stepping]

    def pipeline(self, gate: PausePoint | None = None) -> Pipeline:
        """Compose the layers that perform the turn's requests. ``gate``: where a debugger may hold them."""
        layers = (
            *(layer for part in self._parts for layer in part.outer),
            Layer("approvals", self._settle_question, (AskApproval,)),
            *(() if gate is None else (gate.layer,)),
            *(layer for part in self._parts for layer in part.layers),
        )
        pipeline = Pipeline(self.turn, self.handlers.__getitem__, layers)
        if gate is not None:
            gate.joins(pipeline)
        return pipeline

    def tell(self, text: str) -> None:
        """Report a line to people."""
        self._services.callbacks.publish(StatusText(text))

    async def _settle_question(
        self, request: AskApproval, turn: Any, call_next: Perform
    ) -> Approval | NotYet:
        """Pose the question in readable form, and admit a call that a person, a rule or a debugger allowed. A
        debugger's answer is remembered like a person's."""
        question = self._approvals.complete(request)
        answer: Approval | NotYet = await call_next(question)
        own = self._own_answers.pop(request.call_id, None)
        if isinstance(answer, NotYet):
            return answer
        if answer is not own:
            if self._waiting.resumed:
                answer = await asyncio.to_thread(self._waiting.settle, question, answer)
            await self._approvals.remember(question, answer, self.session.id)
        self._admission.remember(question, answer)
        return answer

    async def abandon(self) -> None:
        """End background work of the turn, because another process owns it now."""
        await self._services.programs.end(self.fence.turn_id)

    # Begin and end

    def set_prompt(self, system_prompt: str, notices: Sequence[str] = ()) -> None:
        """Set the system prompt and the notices for ``OpenTurn``, once the session is locked."""
        self._prompt, self._notices = system_prompt, notices

    async def _open(self, request: OpenTurn) -> Opened:
        runtime, notice = await self._services.backends.new_turn()
        missing = await self._services.tools.ready(self._services.signals.event())
        self._tell_guess()
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
            compacted=Compacted(guard.done, guard.why_blocked(self._services.clock.now())),
            silences=self._services.silences,
            **self._checks_of(),
            **await self._opening(),
        )

    def _checks_of(self) -> dict[str, Any]:
        """Collect the checks and abilities that the agent's features give the turn."""
        checks: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for part in self._parts:
            checks |= {name: value or checks.get(name, value) for name, value in part.checks.items()}
            found |= part.opens
        return {"checks": Checks(**checks), **found}

    async def _opening(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for part in self._parts:
            found |= await part.opening()
        return found

    def _tools(self) -> tuple[ToolSpec, ...]:
        services = self._services
        final = () if self.answers is None else (self.answers.final_tool,)
        specs = (*services.tools.specs, *services.agent_tools.specs, *final)
        specs = self._approvals.looked_at(specs, services.tools.outside_names, services.tools.confinements)
        self._admission.open(specs)
        return apply_bridge(specs, services.tools.late_names, services.settings.tool.bridge_above)

    def _auxiliary(self) -> tuple[Runtime, ...]:
        learned = self._services.learned
        return tuple(
            learned.apply(backend.choice.runtime(primary=False)) for backend in self._services.auxiliary
        )

    def _tell_guess(self) -> None:
        """Report the assumptions about an unknown model, once per process."""
        line = self._services.backends.guess
        if line and line not in GUESSES:
            GUESSES.add(line)
            self._services.callbacks.publish(StatusText(line))

    async def reopen(self, before: Runtime) -> Opened:
        """Perform ``OpenTurn`` for a turn that was opened in another process. It ran on ``before``,
        which is looked up in the chain, unless the turn was imported."""
        backends = self._services.backends
        runtime, notice = await (backends.new_turn() if self.imported else backends.resume(before))
        await self._ready_auxiliary()
        missing = await self._services.tools.ready(self._services.signals.event())
        for line in (*self._notices, FROM_A_FILE if self.imported else "", notice, *missing):
            if line:
                self._services.callbacks.publish(StatusText(line))
        for part in self._parts:
            part.reopened()
        self._waiting.resumed = True
        return Opened(
            runtime,
            self._tools(),
            workdir=str(self._services.workdir),
            auxiliary=self._auxiliary(),
            **self._checks_of(),
        )

    def spent_before(self, iterations: int, attempts: int, below: SpentBudget) -> None:
        """Count what a resumed turn, and the turns ``below`` it, have already spent of the budgets of its
        tree."""
        given, tree = self._services.budget, self.budget
        if tree is None or tree is given:
            return
        shared = given is None and self._services.settings.delegation.budget != "independent"
        own = SpentBudget(iterations if given is None else 0, attempts)
        tree.settle(own, below if shared else below._replace(iterations=0))

    async def _ready_auxiliary(self) -> None:
        for backend in self._services.auxiliary:
            backend.port.use_key(await backend.keys.key())

    async def _signals(self, request: CheckSignals) -> Signals:
        box, budget = self._services.signals, self.budget
        return Signals(
            interrupted=box.interrupted,
            message=box.message,
            steer=box.take_steer() if request.take_steer else (),
            starved=request.charge and budget is not None and not budget.take(),
            at=self._services.clock.now(),
            news=await self._news() if request.take_steer and self._bringing else (),
        )

    async def _news(self) -> tuple[str, ...]:
        return tuple([line for part in self._bringing for line in await part.news()])

    async def _close(self, request: CloseTurn) -> Done:
        self._services.silences = request.silences
        await self._services.programs.end(self._turn_id)
        if request.chain_exhausted:
            self._services.backends.rest_primary(self._services.settings.primary_cooldown.chain_exhausted)
        self._services.signals.clear()
        await self._services.callbacks.drain()
        for part in self._parts:
            await part.closing()
        return Done(await self._keep_lessons(request.lessons))

    async def _keep_lessons(self, lessons: tuple[Lesson, ...]) -> tuple[str, ...]:
        """Store facts learned about models. An imported turn teaches nothing."""
        if not lessons or self.imported:
            return ()
        try:
            await in_daemon_thread(self._services.learned.keep, lessons)
        except OSError as error:  # including a lock that is held too long
            return (f"what was learned of the model is not kept: {type(error).__name__}: {error}",)
        return ()

    # Features

    def began(self, content: Any) -> None:
        """Notify the features that the turn begins here, or continues."""
        text = text_only(content)
        for part in self._parts:
            part.began(text)

    def follow(self, gate: PausePoint) -> None:
        """Let the features observe the turn, and notify the callbacks of each move."""
        for part in self._parts:
            part.follow(gate.stream)
        if self._stepping:
            gate.stepping = self.stepping
        callbacks, turn = self._services.callbacks, self.turn

        def moved(step: Step) -> None:
            if callbacks.hears(Transition):
                counters = turn.counters()
                callbacks.publish(Transition(turn.turn_id, step.source, step.event, step.dest, counters))

        gate.stream.subscribe(moved, Step)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Run a step of the turn, or a compaction, within the contexts of the features."""
        with ExitStack() as stack:
            for part in self._stepping:
                stack.enter_context(part.stepping())
            yield

    def call_of(self, request: RunTool | AnswerProgram) -> RunTool | None:
        """Return the call that a request continues, ``None`` if its program no longer runs."""
        if isinstance(request, RunTool):
            return request
        return self._services.programs.of(self._turn_id, request.call_id)

    # Model

    async def _rekey(self, request: Rekey) -> Switched:
        return await self._services.backends.rekey(request)

    async def _rebuild(self, request: RebuildClient) -> Switched:
        return await self._services.backends.rebuild()

    async def _switch(self, request: SwitchProvider) -> Switched:
        backends = self._services.backends
        switched = await backends.switch(request.cooldown == "rate_limit", request.wider_than)
        self._tell_guess()
        return switched

    async def _stop_streaming(self, request: SwitchStreaming) -> Switched:
        return self._services.backends.stop_streaming()

    # Tools

    async def _run_tool(self, request: RunTool) -> Ended:
        services = self._services
        digest = signature(request.name, request.arguments) if self._waiting.resumed else ""
        if (item := self._waiting.of(request.call_id, ("result", "timer", "question"), digest)) is not None:
            if item.is_settled(services.clock.now()):
                return await self._awaited_result(request, item)
            if item.kind != "question":  # a question is asked again
                if services.signals.event().is_set():
                    return ToolOutcome(request.call_id, "unknown", INTERRUPTED_WHILE_WAITING)
                return NotYet(item.kind, item.call, item.tool, item.asked, item.choices, digest, item.due)
        if services.settings.tool.delay:
            await services.clock.sleep(services.settings.tool.delay)
        if why := await self._why_blocked(request):
            return ToolOutcome(request.call_id, "denied", DENIED.format(why=why))
        services.callbacks.publish(ToolStart(request.call_id, request.name, dict(request.arguments)))
        publish_progress(services.callbacks, "started", request, lambda: str(dict(request.arguments)))
        return await self._ran(request)

    def _note_bug(self, bug: BaseException) -> None:
        """Keep the bug for the result; with ``debug``, end the turn here and raise it."""
        self.bugs.append(bug)
        if self._services.debug:
            self._services.signals.interrupt()

    async def _awaited_result(self, request: RunTool, item: Pending) -> ToolOutcome:
        """Return the outcome of a call that was answered while no process ran the turn, or that is now
        due."""
        value = item.asked if item.answered is None else item.answer
        if item.kind == "question":
            value = answer_result(item.asked, item.choices, value)
        own = self._services.agent_tools
        return await (own if own.handles(request.name) else self._services.tools).finish_late(request, value)

    async def _answer_program(self, request: AnswerProgram) -> Ended:
        return await self._services.programs.answer(self._turn_id, request)

    def _say(self, name: str, text: str) -> None:
        """Report a tool's progress."""
        self._services.callbacks.publish(ToolProgress("said", name, text))

    async def _why_blocked(self, request: RunTool) -> str:
        """Return why the call is blocked, or nothing; its start is published only afterwards."""
        if self._admission.free(request.name):
            event = self._services.signals.event()
            return await self._approvals.before(request.name, request.arguments, event)
        return "" if self._admission.admits(request) else UNASKED

    async def _ran(self, request: RunTool) -> Ended:
        """Run the call: the agent runs its own tools, the registry all others. This is the only place
        that chooses between them."""
        services, interrupted = self._services, self._services.signals.event()
        if request.name == FINAL and self.answers is not None:
            return ToolOutcome(request.call_id, "error", NOT_TAKEN)
        if request.name in PROGRAMMATIC:
            run = partial(services.tools.run, request, interrupted)
            return await services.programs.begin(self._turn_id, request, run)
        by_program = self._made_by_program(request.call_id)
        if not services.agent_tools.handles(request.name):
            scene = replace(self.scene(), tell=self._say, attempt=1 + (request.key in self.cut_off))
            ended = await services.tools.run(request, interrupted, scene, self._note_bug)
            if isinstance(ended, NotYet) and by_program:
                return ToolOutcome(request.call_id, "error", NO_PROGRAM_WAITS)
            return ended
        window = services.backends.runtime().window
        here = ToolContext(
            self.session,
            self.fence,
            request.call_id,
            interrupted,
            self.budget,
            window,
            self.scene().deps,
            len(self.turn.setup.handoffs),
        )
        return await services.agent_tools.run(request, here)

    async def _ask(self, request: AskApproval) -> Approval | NotYet:
        """Ask a person; calls of a program are not deferred, because it dies with this process."""
        waiting = None if self._made_by_program(request.call_id) else self._waiting
        interrupted = self._services.signals.event()
        answer = await self._approvals.ask(request, interrupted, self.session.id, waiting)
        self._own_answers[request.call_id] = answer
        return answer

    def _made_by_program(self, call_id: str) -> bool:
        return self._services.programs.of(self._turn_id, call_id.rpartition("~")[0]) is not None

    async def _resolve(self, request: ResolvePaths) -> ResolvedPaths:
        return await in_daemon_thread(_resolve, request)

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
                guard.record_success(with_model=request.with_model)
            case "nothing_gained":
                guard.record_no_gain()
            case "summary_failed":
                guard.record_failure(request.fault, now)
            case "read":
                guard.read(over=request.over)
        return Compacted(guard.done, guard.why_blocked(now))

    async def _spill(self, request: Spill) -> Saved:
        return save(self._services.home / RESULTS, f"{self.session.id}-{request.call_id}.txt", request.text)

    async def _dump(self, request: DumpRequest) -> Saved:
        text = mask(request.request.body.decode("utf-8", "replace"))
        return save(self._services.home / DUMPS, f"{self.session.id}-{uuid.uuid4().hex[:8]}.json", text)

    async def _tell(self, request: Tell) -> Done:
        if request.once:
            if request in self._services.reported:
                return Done()
            self._services.reported.add(request)
        self._services.callbacks.publish(CHANNELS[request.channel](*request.values))
        return Done()


def _resolve(request: ResolvePaths) -> ResolvedPaths:
    return ResolvedPaths(tuple(_real(request.workdir, path) for path in request.paths))


def _real(workdir: str, path: str) -> str:
    """Resolve a path; return a text that cannot be a path unchanged, for its tool to refuse."""
    try:
        return os.path.realpath(os.path.join(workdir, path))
    except (OSError, ValueError):
        return path


def _budget_of(services: Services, turn_id: str) -> IterationBudget | None:
    """Return the budget of a turn: shared with its children, if it can have any (DIS-01), within the given
    one. A child gets the budget of its tree."""
    given, trees = services.budget, services.store.trees
    quiet = services.background is not None and services.background.quiet
    family = bool(quiet) or services.agent_tools.begin_turns
    if (given is not None and given.requests is not None) or not family:
        return given
    return trees.get(turn_id) or trees.setdefault(turn_id, tree_budget(services.settings, given))
