"""One child turn: creating, finding, or resuming it, watching it while it runs, and its outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, Field

from fsm_agent.conversation.effects import Saved
from fsm_agent.conversation.parts import Part
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.conversation.token_meter import CHARS_PER_TOKEN
from fsm_agent.errors import FsmAgentError, OwnershipLost, TurnSuspended
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.clock import Stopwatch
from fsm_agent.runtime.events import TURN, Named, StatusText, running
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings import DelegationSettings, Settings
from fsm_agent.support.texts import one_line, shorten
from fsm_agent.support.threads import Interrupt
from fsm_agent.support.untrusted import wrap_untrusted
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import here

if TYPE_CHECKING:
    from fsm_agent.toolsets.agent.background import Background

Status = Literal["completed", "failed", "partial", "interrupted"]
OUTCOMES: tuple[Status, ...] = ("completed", "failed", "partial", "interrupted")
BRIEF = (
    "You work on one task for another assistant. You see nothing of its conversation and cannot ask anybody."
    " Do the task with your tools, then answer with the result alone: what you found or changed, with the"
    " paths, figures and names that matter, and what you could not do. Your answer is all that is read."
)


@dataclass(frozen=True, slots=True)
class ChildTask:
    """The task of a child. A repeated call gives the same ids. ``unattended``: no caller waits for it, so it
    may not ask questions. ``brief``: its instructions. ``side_task``: it uses the models for this task and
    has no tools. ``parts``: further parts of its message. ``deps``: the dependencies of its parent's tools,
    in this process only."""

    session_id: str
    parent_session: str
    parent_turn: str
    task_id: str
    goal: str
    context: str
    budget: IterationBudget
    callbacks: Mapping[str, Callable[..., Any]] | None = None
    unattended: bool = False
    brief: str = BRIEF
    side_task: str = ""
    parts: tuple[Part, ...] = ()
    deps: Any = None

    @classmethod
    def quiet(
        cls,
        session: Session,
        turn_id: str,
        task: str,
        goal: str,
        context: str,
        budget: IterationBudget,
        side_task: str = "",
    ) -> Self:
        """Return the background task of this name for a turn; always the same for one turn."""
        child, about = f"c-{turn_id}.{task}.0", wrap_untrusted(context, "the conversation")
        return cls(
            child, session.id, turn_id, task, goal, about, budget, unattended=True, side_task=side_task
        )

    @property
    def message(self) -> str | Sequence[Any]:
        """Return the child's message: its goal and the context it needs."""
        words = f"{self.goal}\n\nContext:\n{self.context}" if self.context.strip() else self.goal
        return [words, *self.parts] if self.parts else words


class RunningTurn(Protocol):
    """The part of ``fsm_agent.Turn`` that a child needs."""

    async def arun(self) -> TurnResult:
        """Run the turn to its end."""
        ...


class ChildAgent(Protocol):
    """The part of ``fsm_agent.agent.Agent`` that a child needs."""

    def start(
        self,
        user_message: str | Sequence[Any],
        system_message: str | None = None,
        *,
        task_id: str | None = None,
        deps: Any = None,
    ) -> RunningTurn:
        """Return a turn that has not moved yet."""
        ...

    def resume(self, session_or_turn_id: str, *, deps: Any = None) -> RunningTurn:
        """Return an unfinished turn at its last position."""
        ...

    def interrupt(self, message: str | None = None) -> None:
        """Ask the running turn to stop."""
        ...

    async def aclose(self) -> None:
        """Release connections and tools."""
        ...


class ChildFactory(Protocol):
    """Creates child agents."""

    @property
    def allowed(self) -> bool:
        """Return whether children are allowed."""
        ...

    def has_models(self, task: str) -> bool:
        """Return whether there are models for this side task, besides the one in use."""
        ...

    def child(self, order: ChildTask) -> ChildAgent:
        """Make an agent for the task, without anything that a child may not do."""
        ...

    def keep(self, name: str, text: str) -> Saved:
        """Save an answer that is too long for its parent."""
        ...


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The outcome of a child; ``text`` is its answer, or what its model said before it failed."""

    status: Status
    text: str
    turn_id: str = ""
    iterations: int = 0
    tokens: int = 0
    error: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any], turn_id: str) -> ChildEnded:
        """Parse a stored result."""
        status: Status = next((name for name in OUTCOMES if data[name]), "failed")
        error = data["error"] or ("" if status == "completed" else data["turn_exit_reason"])
        return cls(status, words_of_model(data), turn_id, data["api_calls"], data["total_tokens"], str(error))


class Child:
    """A child. ``end`` is ``None`` while it runs; ``in_tool`` and ``idle`` show whether it is active."""

    def __init__(
        self, order: ChildTask, child_factory: ChildFactory, store: Store, callbacks: Callbacks, clock: Clock
    ) -> None:
        self.order = order
        self.end: ChildEnded | None = None
        self._child_factory, self._store, self._callbacks = child_factory, store, callbacks
        self._active, self._tools = Stopwatch(clock), set[str]()
        self._agent: ChildAgent | None = None
        self._stopped, self._last = "", "begins"
        self._outer = TURN.get()

    @property
    def in_tool(self) -> bool:
        """Return whether a tool of the child is running."""
        return bool(self._tools)

    @property
    def doing(self) -> str:
        """The task and its latest action, in a few words."""
        return f"{one_line(self.order.goal, 60)} ({self._last})"

    def idle(self) -> float:
        """Return the seconds since the last sign of life."""
        return self._active.elapsed()

    def interrupt(self, why: str) -> None:
        """Ask the child to end by itself. Idempotent."""
        if self._agent is not None and not self._stopped:
            self._agent.interrupt(why)
        self._stopped = self._stopped or why

    async def run(self) -> ChildEnded:
        """Run the child to its end. Report any failure as its result, so that the other children continue.
        Raises ``TurnSuspended`` if the child waits for an answer, ``OwnershipLost`` if another process runs
        it."""
        self._tell("child:start", {"goal": one_line(self.order.goal, 200)})
        try:
            self.end = await self._run()
        except TurnSuspended:
            self._tell("child:suspended", {})
            raise
        except OwnershipLost as error:
            self._tell("child:end", {"status": "failed", "turn_id": "", "error": str(error)})
            raise
        except FsmAgentError as error:
            self.end = ChildEnded("failed", "", error=one_line(str(error)))
        self._tell(
            "child:end", {"status": self.end.status, "turn_id": self.end.turn_id, "error": self.end.error}
        )
        return self.end

    async def _run(self) -> ChildEnded:
        journal, order = Turns(self._store.database), self.order
        before = journal.recent(1, session=order.session_id)
        if before and before[0].ended is not None and (stored := journal.result(before[0].id)) is not None:
            return ChildEnded.of(stored, before[0].id)
        if self._stopped:
            return ChildEnded("interrupted", "", error=self._stopped)
        agent = self._agent = self._child_factory.child(replace(order, callbacks=self._listeners()))
        try:
            if before and before[0].ended is None:
                turn = agent.resume(before[0].id, deps=order.deps)
            else:
                turn = agent.start(order.message, order.brief, task_id=order.task_id, deps=order.deps)
            result = await turn.arun()
        finally:
            await agent.aclose()
        ended = ChildEnded.of(result.model_dump(mode="json", exclude={"messages", "states"}), result.turn_id)
        return replace(ended, error=self._stopped or ended.error)

    def _listeners(self) -> dict[str, Callable[..., Any]]:
        """Return the child's callbacks: each is a sign of life, and tool events are forwarded to the parent's
        callbacks."""

        def alive(*values: Any) -> None:
            self._active.restart()

        def started(call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
            self._active.restart()
            self._tools.add(call_id)
            self._last = name
            self._tell("child:tool", {"name": name, "arguments": one_line(str(dict(arguments)), 120)})

        def completed(call_id: str) -> None:
            self._active.restart()
            self._tools.discard(call_id)

        def status(text: str) -> None:
            self._active.restart()
            self._tell("child:status", {"text": text})

        quiet = ("transition", "thinking", "reasoning", "stream_delta", "step", "tool_gen")
        return dict.fromkeys(quiet, alive) | {
            "tool_start": started,
            "tool_complete": completed,
            "status": status,
        }

    def _tell(self, name: str, data: dict[str, Any]) -> None:
        """Publish an event to the parent's callbacks, as part of the parent's turn."""
        with running(self._outer):
            self._callbacks.publish(
                Named(name, {"session_id": self.order.session_id, "task_id": self.order.task_id} | data)
            )


# ----------------------------------------------------------------------------------------------------
# Running children: watched for signs of life, stopped together, each with its own outcome.


class ChildSupervisor:
    """Supervision of children. ``quiet``: no caller waits for them, so they report no signs of life."""

    def __init__(
        self, callbacks: Callbacks, clock: Clock, settings: Settings, *, quiet: bool = False
    ) -> None:
        self._callbacks, self._clock, self._limits = callbacks, clock, settings.delegation
        self.pause = min(settings.poll.control, self._limits.heartbeat)
        self.beat = float("inf") if quiet else self._limits.heartbeat

    def why_stalled(self, child: Child) -> str:
        """Return the reason for giving up a child, or an empty string."""
        limit = self._limits.stale_in_tool if child.in_tool else self._limits.stale_idle
        idle = child.idle()
        where = "in a tool" if child.in_tool else "without doing anything"
        return f"stopped after {idle:.0f} s {where}" if idle > limit else ""

    def heartbeat(self, children: Sequence[Child]) -> None:
        """Report what the running children are doing as a status line of the parent."""
        busy = [child.doing for child in children if child.end is None]
        self._callbacks.publish(
            StatusText(f"{len(busy)} of {len(children)} delegated tasks at work: {'; '.join(busy)}")
        )

    def watch(self) -> Stopwatch:
        """Return a running stopwatch."""
        return Stopwatch(self._clock)


class ChildFamily:
    """The children of one call. An interrupt goes to all of them, and their answers so far are kept."""

    def __init__(
        self, children: Sequence[Child], supervisor: ChildSupervisor, interrupted: Interrupt
    ) -> None:
        self.children, self._supervisor, self._interrupted = children, supervisor, interrupted

    async def run(self) -> list[ChildEnded]:
        """Return the outcomes in the order of the tasks. Raises ``TurnSuspended`` if a child waits for an
        answer, once the others have ended."""
        work = [asyncio.ensure_future(child.run()) for child in self.children]
        try:
            await self._watch(work)
        except asyncio.CancelledError:
            if not self._interrupted.is_set():
                await _stop(work)
                raise
            for child in self.children:
                child.interrupt("the user interrupted")
            try:
                await asyncio.wait(work)
            except asyncio.CancelledError:
                await _stop(work)
                raise
        failed = [error for task in work if (error := task.exception()) is not None]
        if failed:
            raise failed[0]
        return [task.result() for task in work]

    async def _watch(self, work: Sequence[asyncio.Future[ChildEnded]]) -> None:
        since = self._supervisor.watch()
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=self._supervisor.pause, return_when=asyncio.ALL_COMPLETED)
            for child in self.children:
                if child.end is None and (why := self._supervisor.why_stalled(child)):
                    child.interrupt(why)
            if since.elapsed() >= self._supervisor.beat and not all(task.done() for task in work):
                since.restart()
                self._supervisor.heartbeat(self.children)


async def _stop(work: Sequence[asyncio.Future[ChildEnded]]) -> None:
    """Stop the children where they are; each can be resumed."""
    for task in work:
        task.cancel()
    await asyncio.wait(work)


def room(limits: DelegationSettings, used: int, window: int | None, among: int) -> int:
    """Return the maximum characters for each of ``among`` answers: a share of the rest of the parent's
    window, which is in tokens (AGT-05)."""
    if window is None:
        return limits.summary_max_chars
    free = max(0, window - used) * CHARS_PER_TOKEN
    return min(
        limits.summary_max_chars, max(limits.summary_min_chars, int(free * limits.headroom_fraction / among))
    )


def fit_answer(text: str, limit: int, name: str, child_factory: ChildFactory) -> str:
    """Return the answer, or its head and tail with the path of the saved whole."""
    if len(text) <= limit:
        return text
    saved = child_factory.keep(f"{name}.txt", text)
    return shorten(text, limit - 200, f"the whole answer is in {saved.path}" if saved.path else saved.error)


# ----------------------------------------------------------------------------------------------------
# Child turns: tasks that the model delegates to separate agents, which do not see its conversation
# (AGT-05, AGT-06).
#
# The key of the call names the children, and each is a turn of its own in the journal. A delegation that
# ended with its process is therefore repeated safely: finished children are looked up, started ones are
# resumed under the rules of every turn, and only the rest start from the beginning.


NAME = "delegate_task"
LONGEST = 86_400.0
"""Seconds; a child's own budget and the idle limits end it sooner."""
MAX_TASK = 100_000
"""Maximum characters of one task including its context."""
LATER = (
    "They work in the background. Each report comes by itself, with the results of a later tool call or in"
    " front of the next message. Do not wait for them, do not ask for them, and do not do their work"
    " yourself."
)


class Task(BaseModel):
    """One piece of work."""

    goal: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_TASK,
            description="What is to be done, and what the answer must hold.",
        ),
    ]
    context: Annotated[
        str,
        Field(max_length=MAX_TASK, description="All that one must know for it: files, facts, constraints."),
    ] = ""


class Delegation:
    """The children of one agent. ``most``: iterations that a child may take, instead of the setting.
    ``background``: runs children without waiting for them."""

    def __init__(
        self,
        child_factory: ChildFactory,
        store: Store,
        callbacks: Callbacks,
        clock: Clock,
        settings: Settings,
        most: int | None = None,
        background: Background | None = None,
    ) -> None:
        self._background = background
        self._child_factory, self._store, self._callbacks = child_factory, store, callbacks
        self._clock, self._most = clock, most
        self._limits, self._supervisor = settings.delegation, ChildSupervisor(callbacks, clock, settings)
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def delegate_task(
        self,
        goal: Annotated[str, Field(max_length=MAX_TASK)] = "",
        context: Annotated[str, Field(max_length=MAX_TASK)] = "",
        tasks: list[Task] | None = None,
        background: bool = False,
        idempotency_key: str = "",
    ) -> dict[str, Any]:
        """Give work to one or more assistants that do it with your tools and report back. They know nothing
        of this conversation and cannot ask you, so tell each one everything. Only their final answers come
        back.

        Good for work that would fill this conversation with detail, and for several tasks that do not depend
        on each other: those of one call run at the same time. Check what they report before you rely on it.

        Args:
            goal: What one assistant is to do; leave it out when tasks are given.
            context: All that it must know for it.
            tasks: Several tasks at once, instead of goal and context.
            background: Do not wait. You get handles at once, and each report comes to you by itself later,
                also when you have answered meanwhile. For long work whose result you do not need for what you
                do now.
        """
        if background and self._background is None:
            raise ToolFailure("background: no such argument here. Nothing was started.")
        orders = self.orders(goal, context, tasks, idempotency_key)
        if background and self._background is not None:
            await self._background.begin(orders, here().fence)
            started = [{"task": order.goal[:200], "handle": order.session_id} for order in orders]
            return {"started": started, "note": LATER}
        ended = await self.run_children(orders, idempotency_key)
        return {
            "results": [
                self._report(order, end, len(orders)) for order, end in zip(orders, ended, strict=True)
            ]
        }

    async def end_of(self, key: str, goal: str, context: str = "", **more: Any) -> ChildEnded:
        """Run the only child of a call to its end; ``more``: further fields of its ``ChildTask``."""
        [end] = await self.run_children([self.order(key, goal, context, **more)], key)
        return end

    async def run_children(self, orders: Sequence[ChildTask], key: str) -> list[ChildEnded]:
        """Run the children of one call to their ends."""
        children = [
            Child(order, self._child_factory, self._store, self._callbacks, self._clock) for order in orders
        ]
        async with self._alone(key):
            return await ChildFamily(children, self._supervisor, here().interrupted).run()

    def orders(self, goal: str, context: str, tasks: Sequence[Task] | None, key: str) -> list[ChildTask]:
        """Return one task per child that a call asks for. Raises ``ToolFailure`` for none or too many."""
        asked = list(tasks or ()) or ([Task(goal=goal, context=context)] if goal.strip() else [])
        if not asked:
            raise ToolFailure("There is nothing to do: give a goal, or tasks.")
        if len(asked) > self._limits.max_children:
            raise ToolFailure(
                f"{len(asked)} tasks; at most {self._limits.max_children} at a time. Nothing was started."
            )
        return [self.order(key, task.goal, task.context, number) for number, task in enumerate(asked)]

    @contextlib.asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        """Let a repeated call wait until the children of its first run have stopped."""
        before, mine = self._running.get(key), asyncio.current_task()
        assert mine is not None, "a tool runs in a task"
        self._running[key] = mine
        try:
            if before is not None and before.get_loop() is mine.get_loop():
                await asyncio.wait({before})
            yield
        finally:
            if self._running.get(key) is mine:
                del self._running[key]

    def order(self, key: str, goal: str, context: str = "", number: int = 0, **more: Any) -> ChildTask:
        """Return the task of child ``number`` of the current call; the same when the call is repeated."""
        scene, most = here(), self._most or self._limits.max_iterations
        budget = scene.budget.child(self._limits.budget, most) if scene.budget else IterationBudget(most)
        return ChildTask(
            session_id=f"c-{scene.turn_id}.{key[:8] or scene.call_id[-8:]}.{number}",
            parent_session=scene.session.id,
            parent_turn=scene.turn_id,
            task_id=f"{scene.call_id}.{number}",
            goal=goal,
            context=context,
            budget=budget,
            deps=scene.deps,
            **more,
        )

    def fit(self, order: ChildTask, text: str, among: int = 1) -> str:
        """Return an answer as its parent sees it, one of ``among``."""
        scene = here()
        limit = room(self._limits, scene.session.meter.tokens, scene.window, among)
        return fit_answer(text, limit, order.session_id, self._child_factory)

    def _report(self, order: ChildTask, end: ChildEnded, among: int) -> dict[str, Any]:
        """Return the report on one child for the parent's model: its outcome, answer, and usage."""
        text = self.fit(order, end.text, among)
        report = {"task": order.goal[:200], "status": end.status, "summary": text, "turn": end.turn_id}
        return (
            report
            | {"iterations": end.iterations, "tokens": end.tokens}
            | ({"error": end.error} if end.error else {})
        )


def delegating(tool: Tool, description: str = "") -> Tool:
    """Return ``made`` as a tool whose calls are child turns, optionally with another description."""
    spec = replace(tool.spec, delegates=True, description=description or tool.spec.description)
    return replace(tool, spec=spec)


def delegate_tool(
    child_factory: ChildFactory,
    store: Store,
    callbacks: Callbacks,
    clock: Clock,
    settings: Settings,
    background: Background | None = None,
) -> Tool:
    """Make the tool, idempotent because its key names the children. Without ``background`` it waits."""
    runner = Delegation(child_factory, store, callbacks, clock, settings, background=background)
    hidden = () if background is not None else ("background",)
    options = tool(concurrency="parallel", effect="idempotent", timeout=LONGEST, hidden=hidden)
    return delegating(options(runner.delegate_task))
