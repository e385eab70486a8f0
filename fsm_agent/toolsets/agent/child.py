"""One child turn: made, found again or resumed; watched while it runs; and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

from fsm_agent.conversation.effects import Saved
from fsm_agent.conversation.parts import Part
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.conversation.token_meter import CHARS_PER_TOKEN
from fsm_agent.errors import FsmAgentError, OwnershipLost, TurnSuspended
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.deadline import Stopwatch
from fsm_agent.runtime.events import TURN, Named, StatusText, running
from fsm_agent.runtime.ports import Clock
from fsm_agent.sessions.session import Session
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.settings.model import DelegationSettings, Settings
from fsm_agent.support.texts import one_line, shorten
from fsm_agent.support.untrusted import wrap_untrusted

Status = Literal["completed", "failed", "partial", "interrupted"]
OUTCOMES: tuple[Status, ...] = ("completed", "failed", "partial", "interrupted")
BRIEF = (
    "You work on one task for another assistant. You see nothing of its conversation and cannot ask anybody."
    " Do the task with your tools, then answer with the result alone: what you found or changed, with the"
    " paths, figures and names that matter, and what you could not do. Your answer is all that is read."
)


@dataclass(frozen=True, slots=True)
class ChildTask:
    """The task of a child. A repeated call gives the same ids. ``unattended``: no caller waits for it, so
    it may not ask questions. ``brief``: its instructions. ``side_task``: it uses the models for this task,
    and no tools. ``parts``: further parts of its message. ``deps``: the dependencies of its parent's tools,
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
        """Return the task of this name that a turn leaves to the background; the same for the same turn."""
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
    """What a child needs of ``fsm_agent.Turn``."""

    async def arun(self) -> TurnResult:
        """Run the turn to its end."""
        ...


class ChildAgent(Protocol):
    """What a child needs of ``fsm_agent.agent.Agent``."""

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
        """Return an unfinished turn, where it was."""
        ...

    def interrupt(self, message: str | None = None) -> None:
        """Ask the running turn to stop."""
        ...

    async def aclose(self) -> None:
        """Release connections and tools."""
        ...


class ChildFactory(Protocol):
    """Where children come from."""

    @property
    def allowed(self) -> bool:
        """May there be any?"""
        ...

    def has_models(self, task: str) -> bool:
        """Say whether there are models for this side task, besides the one in use."""
        ...

    def child(self, order: ChildTask) -> ChildAgent:
        """An agent that can do what is ordered and nothing that a child may not."""
        ...

    def keep(self, name: str, text: str) -> Saved:
        """Save an answer that is too long for its parent."""
        ...


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """What came of a child; ``text`` is its answer, or what its model said before it failed."""

    status: Status
    text: str
    turn_id: str = ""
    iterations: int = 0
    tokens: int = 0
    error: str = ""

    @classmethod
    def of(cls, said: Mapping[str, Any], turn_id: str) -> ChildEnded:
        """From a result as the journal has it."""
        status: Status = next((name for name in OUTCOMES if said[name]), "failed")
        error = said["error"] or ("" if status == "completed" else said["turn_exit_reason"])
        return cls(status, words_of_model(said), turn_id, said["api_calls"], said["total_tokens"], str(error))


class Child:
    """``end`` is ``None`` while it runs; ``in_tool`` and ``idle`` tell whether it still does something."""

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
        """Say whether a tool of the child is running."""
        return bool(self._tools)

    @property
    def doing(self) -> str:
        """The task and the last thing it did, in a few words."""
        return f"{one_line(self.order.goal, 60)} ({self._last})"

    def idle(self) -> float:
        """Seconds since the last sign of life."""
        return self._active.elapsed()

    def interrupt(self, why: str) -> None:
        """Idempotent; the child ends by itself then."""
        if self._agent is not None and not self._stopped:
            self._agent.interrupt(why)
        self._stopped = self._stopped or why

    async def run(self) -> ChildEnded:
        """Run the child to its end. Report any failure as its result, so that the other children continue.
        Raises ``TurnSuspended`` for a child that waits for an answer, ``OwnershipLost`` for one that
        another process runs."""
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
        if before and before[0].ended is not None and (said := journal.result(before[0].id)) is not None:
            return ChildEnded.of(said, before[0].id)
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
        """A child's callbacks: each is a sign of life, and tool events are forwarded to the parent's
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
        """To the parent's callbacks, as a part of the parent's turn."""
        with running(self._outer):
            self._callbacks.publish(
                Named(name, {"session_id": self.order.session_id, "task_id": self.order.task_id} | data)
            )


# ----------------------------------------------------------------------------------------------------
# Children while they run: watched for signs of life, stopped together, each with its own end.


class Care:
    """Supervision of children. ``quiet``: no caller waits for them, so they report no signs of life."""

    def __init__(
        self, callbacks: Callbacks, clock: Clock, settings: Settings, *, quiet: bool = False
    ) -> None:
        self._callbacks, self._clock, self._limits = callbacks, clock, settings.delegation
        self.pause = min(settings.poll.control, self._limits.heartbeat)
        self.beat = float("inf") if quiet else self._limits.heartbeat

    def stalled(self, child: Child) -> str:
        """Why a child is given up, or nothing."""
        limit = self._limits.stale_in_tool if child.in_tool else self._limits.stale_idle
        idle = child.idle()
        where = "in a tool" if child.in_tool else "without doing anything"
        return f"stopped after {idle:.0f} s {where}" if idle > limit else ""

    def heartbeat(self, children: Sequence[Child]) -> None:
        """Tell the parent's people what its children are doing."""
        busy = [child.doing for child in children if child.end is None]
        self._callbacks.publish(
            StatusText(f"{len(busy)} of {len(children)} delegated tasks at work: {'; '.join(busy)}")
        )

    def watch(self) -> Stopwatch:
        """Return a stopwatch that runs from now."""
        return Stopwatch(self._clock)


class ChildFamily:
    """The children of one call. An interrupt goes to all of them, and their answers so far are kept."""

    def __init__(self, children: Sequence[Child], care: Care, interrupted: asyncio.Event) -> None:
        self.children, self._care, self._interrupted = children, care, interrupted

    async def raised(self) -> list[ChildEnded]:
        """How each ended, in order of the tasks. Raises ``TurnSuspended`` when one of them waits for an
        answer, after the others have ended."""
        work = [asyncio.ensure_future(child.run()) for child in self.children]
        try:
            await self._watch(work)
        except asyncio.CancelledError:
            if not self._interrupted.is_set():
                await _stopped(work)
                raise
            for child in self.children:
                child.interrupt("the user interrupted")
            try:
                await asyncio.wait(work)
            except asyncio.CancelledError:
                await _stopped(work)
                raise
        failed = [error for task in work if (error := task.exception()) is not None]
        if failed:
            raise failed[0]
        return [task.result() for task in work]

    async def _watch(self, work: Sequence[asyncio.Future[ChildEnded]]) -> None:
        since = self._care.watch()
        while not all(task.done() for task in work):
            await asyncio.wait(work, timeout=self._care.pause, return_when=asyncio.ALL_COMPLETED)
            for child in self.children:
                if child.end is None and (why := self._care.stalled(child)):
                    child.interrupt(why)
            if since.elapsed() >= self._care.beat and not all(task.done() for task in work):
                since.restart()
                self._care.heartbeat(self.children)


async def _stopped(work: Sequence[asyncio.Future[ChildEnded]]) -> None:
    """Stop the children where they are; each can be resumed."""
    for task in work:
        task.cancel()
    await asyncio.wait(work)


def room(limits: DelegationSettings, used: int, window: int | None, among: int) -> int:
    """Characters for one of ``among`` answers: a share of what the parent's window, in tokens, has left
    (AGT-05)."""
    if window is None:
        return limits.summary_max_chars
    free = max(0, window - used) * CHARS_PER_TOKEN
    return min(
        limits.summary_max_chars, max(limits.summary_min_chars, int(free * limits.headroom_fraction / among))
    )


def fit_answer(text: str, limit: int, name: str, child_factory: ChildFactory) -> str:
    """The answer, or its head and tail and where the whole of it is."""
    if len(text) <= limit:
        return text
    saved = child_factory.keep(f"{name}.txt", text)
    return shorten(text, limit - 200, f"the whole answer is in {saved.path}" if saved.path else saved.error)
