"""``DurableTurn``: one turn for its caller, who runs it, steps through it, or inspects it; it is stored as it
moves.

It owns the turn's stay in its session. The first step takes the session, in this process and in the store;
each step runs inside the fence of the turn's epoch; the last one writes the result and releases the session.
A turn that is canceled, suspended or handed over releases it as well, after a complete move, so that any
process can resume it. (Why: decisions 48 and 49.)
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fsm_agent.errors import OwnershipLost, StaleCopyError, TurnSuspended, expect_name
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.pause_point import PausePoint, TurnKind
from fsm_agent.fsm.properties import Watch, watcher
from fsm_agent.fsm.runner import Perform, RunnableTurn, Runner, Stepping
from fsm_agent.runtime.events import SIZE, Events, running
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Begun, Claim, Store
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal import Closing, Recording, TurnLog
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.sessions.store.rewind import Position, ReadRecording, fork_turn, position_of, take_over
from fsm_agent.sessions.store.stored_sessions import find_turn
from fsm_agent.support.threads import LOOP, warn_if_blocking

if TYPE_CHECKING:
    from fsm_agent.sessions.turn_limiter import TurnLimiter

log = logging.getLogger(__name__)
Result = TypeVar("Result")
LEAVING = 10.0
"""Seconds that a turn waits for one that is being left."""
Enter = Callable[[], Awaitable[Begun]]
"""Takes the session before the first move."""


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class TurnEnding(Generic[Result]):
    """The actions of a turn's owner at its end. ``result`` builds the result from the moves; ``closing``
    returns what is stored of it; ``follow_up`` does deferred work, and returns what failed; ``noted`` adds
    (was it stored, what went wrong) to the result. ``suspended`` receives the pending items of a suspended
    turn; ``lost`` stops background work of a turn that another process took over."""

    result: Callable[[list[Step]], Awaitable[Result]]
    closing: Callable[[Result], Closing]
    noted: Callable[[Result, bool, str], Result]
    follow_up: Callable[[], str] = lambda: ""
    suspended: Callable[[tuple[Pending, ...]], None] = lambda waits: None
    lost: Callable[[], Awaitable[None]] = _nothing


class DurableTurn(Stepping, Generic[Result]):
    """A turn of an ``Agent`` or a ``Workflow`` that has not moved yet, is moving, or has ended.

    It holds the session from its first move to its end, so a second turn on it raises ``SessionBusy``.
    ``result`` is ``None`` until the turn has ended. ``suspended``: the pending items of a turn that was
    suspended for a later reply; this object then moves no further, and ``resume`` returns another one.
    ``enter`` takes the session. ``limiter``: where ``run`` and ``arun`` wait for a slot; single steps do not
    wait."""

    def __init__(
        self,
        state: RunnableTurn,
        runner: Runner,
        store: Store,
        turn_log: TurnLog,
        enter: Enter,
        ending: TurnEnding[Result],
        gate: PausePoint,
        steps: Iterable[Step] = (),
        *,
        tell: Callable[[str], None] = lambda text: None,
        limiter: TurnLimiter | None = None,
        debug: bool = False,
    ) -> None:
        self.result: Result | None = None
        self.suspended: tuple[Pending, ...] | None = None
        self.steps: list[Step] = list(steps)
        self.gate = gate
        self._state, self._runner = state, runner
        self._store, self._log, self._ending, self._tell = store, turn_log, ending, tell
        self._enter_once: Enter | None = enter
        self._limiter, self._debug = limiter, debug
        self._holding = False
        self._running_on = False

    @property
    def bugs(self) -> tuple[BaseException, ...]:
        """The bugs of tools and states since this object began to run the turn, with their tracebacks."""
        return tuple(self._runner.bugs)

    @property
    def id(self) -> str:
        """The id of the turn."""
        return self._state.turn_id

    @property
    def state(self) -> str:
        """The name of the turn's current state."""
        return self._state.state

    @property
    def pipeline(self) -> Any:
        """The layers that perform the turn's requests; ``print`` lists them."""
        return self._runner.perform

    def snapshot(self) -> dict[str, Any]:
        """Return state, counters, limits and facts as plain values; a copy."""
        return self._state.dump()

    def lose(self, why: str) -> None:
        """Stop at once, because another process owns the turn; ``why`` is the reason in one line. Pending
        work is canceled, nothing more is written, and ``OwnershipLost`` is raised where the turn runs.
        Thread-safe."""
        self._log.fence.lose(why)

    # Steps

    async def step_into(self) -> Exchange | Step | None:
        """Run to the next request and its reply, or to the move that ends the state; ``None`` when the turn
        has ended or is suspended. Raises ``OwnershipLost`` when another process owns the turn."""
        if self.result is not None or self.suspended is not None:
            return None
        await self._hold()
        try:
            with running(self.gate.stream), self.gate.stepping(), self._log.fence:
                await self._begin_step()
                happened = await self._end_step(await self._runner.step_into())
        except BaseException as error:
            await self._release_after(error)
            raise
        self._close_if_over()
        return happened

    async def _begin_step(self) -> None:
        if not (self._holding or self._runner.ended):
            await self._enter()
        if self.gate.debugger is not None:
            await self.gate.debugger.passing()
        # a watched move is on disk before it is shown
        self._log.looked_at = not self._running_on or self.gate.debugger is not None

    async def _end_step(self, happened: Exchange | Step | None) -> Exchange | Step | None:
        if isinstance(happened, Step):
            self.steps.append(happened)
        elif self._runner.suspended:
            self.suspended = await self._suspend()
        elif happened is None:
            self.result = await self._finish()
        if happened is not None:
            self.gate.stream.publish(happened)
        return happened

    async def run_until(
        self,
        *,
        state: str | None = None,
        event: str | None = None,
        row: str | None = None,
        when: str | None = None,
    ) -> Step | None:
        """Step until a move enters ``state``, is made on ``event``, takes ``row``, and leaves the counters as
        ``when`` requires (``"retries >= 2"``); omitted conditions always hold. Return ``None`` when the turn
        ends or is suspended first. Raises ``ConfigError`` for a name that no move of this table has."""
        from fsm_agent.fsm.condition_parser import condition, refuse_unknown

        refuse_unknown(self.gate.kind.table, state=state, event=event, row=row)
        holds = condition(when, self._state.counters()) if when is not None else None
        while (step := await self.step()) is not None:
            wanted = ((state, step.dest), (event, step.event), (row, step.row))
            if any(asked is not None and asked != found for asked, found in wanted):
                continue
            if holds is None or holds(self._state.counters()):
                return step
        return None

    # Runs

    def events(self, *, run: bool = True, size: int = SIZE) -> Events:
        """Return the events of callbacks as values, until the turn has ended: ``async for event in
        turn.events()``, or a plain ``for`` in a thread. Iterating runs the turn, unless ``run=False``.
        ``size``: events that a slow listener may lag behind before some are dropped, see
        ``fsm_agent.runtime.events``."""
        return Events(
            self.gate.stream,
            self.arun if run else None,
            size,
            over=self.result is not None or self.suspended is not None,
            left=self.leaving,
        )

    def leaving(self) -> None:
        """Announce that the turn is about to be stopped where it is: the next turn of its session waits for
        that instead of raising ``SessionBusy``."""
        self._store.fences.leaving(self._log.fence)

    async def arun(self) -> Result:
        """Run to the end, as soon as the limit of concurrent turns allows it. Raises ``TurnSuspended`` when
        the turn waits for a missing answer, ``ConfigError`` when the agent is closed before the turn can run,
        and with ``Agent(debug=True)`` the first bug of a tool or a state."""
        if self.result is None and self.suspended is None:
            await self._hold()
            try:
                admitted = nullcontext() if self._limiter is None else self._limiter.admit()
                async with admitted:
                    await self._run_on()
            finally:
                if not self._holding:
                    self._release()
        if self._debug and self._runner.bugs:
            raise self._runner.bugs[0]
        if self.suspended is not None:
            raise TurnSuspended(self.id, self.suspended)
        assert self.result is not None
        return self.result

    async def run_until_left(self, leaving: Callable[[], bool]) -> bool:
        """Run until the turn ends or is suspended, and return true; or to the first move after ``leaving()``
        is true, and return false: any process may then resume the turn, and this object moves no further."""
        if self.result is not None or self.suspended is not None:
            return True
        if await self._run_on(leaving):
            return True
        self._release()
        self.gate.closed("left")
        return False

    async def _run_on(self, leaving: Callable[[], bool] | None = None) -> bool:
        """Hold session and fence for the whole run; return false if the turn was left."""
        await self._hold()
        self._running_on = True
        try:
            with running(self.gate.stream), self.gate.stepping(), self._log.fence:
                while True:
                    if not self._holding or self.gate.debugger is not None or self._log.looked_at:
                        await self._begin_step()
                    happened = await self._runner.step_into()
                    if type(happened) is Exchange:  # the usual case: three of four
                        self.gate.stream.publish(happened)
                        continue
                    if await self._end_step(happened) is None:
                        break
                    if leaving is not None and leaving():
                        self._log.at_rest()
                        await self._store.suspend(self._log.fence)
                        return False
        except BaseException as error:
            await self._release_after(error)
            raise
        finally:
            self._running_on = False
        self._close_if_over()
        return True

    def run(self) -> Result:
        """Run to the end, synchronously. Inside a running event loop this blocks the loop, with a
        ``RuntimeWarning``."""
        warn_if_blocking("run", "await turn.arun()")
        return LOOP.run(self.arun())

    # The session

    async def _hold(self) -> None:
        """Keep other turns of this process off the session. Waits for a turn that is being left. Raises
        ``SessionBusy``."""
        left = self._store.fences.left(self._log.session.id)
        if left is not None:
            await asyncio.wait({asyncio.wrap_future(left)}, timeout=LEAVING)
        self._store.fences.hold(self._log.fence, self._log.session.id)

    async def _release_after(self, error: BaseException) -> None:
        """Release the session after ``error``, and stop the background work of a lost turn."""
        if isinstance(error, OwnershipLost):
            log.info("%s", self._log.fence.why)
            self._store.mark_lost([one.id for one in self._log.line])
            await self._ending.lost()
        self._leave()

    def _close_if_over(self) -> None:
        if self.result is not None or self.suspended is not None:
            self._release()
            self.gate.closed("ended" if self.suspended is None else "suspended", self.result)

    async def _enter(self) -> None:
        """Take the session in the store, or take it again. Raises ``SessionBusy`` when another turn has
        it."""
        if self._enter_once is None:
            await self._store.hold_again(self._log.session, self._log.fence)
        else:
            begun = await self._enter_once()
            self._store.watch(self._log.fence)
            self._log.began(begun.recording)
            self._enter_once = None  # free what the turn began with while it runs
            if begun.abandoned is not None:
                self._tell(
                    f"turn {begun.abandoned} of this session was left unfinished when its process ended; it"
                    " is given up now"
                )
        self._holding = True
        self.gate.opened()

    async def _finish(self) -> Result:
        """Build the result, write it, and release the session in the store."""
        result = await self._ending.result(self.steps)
        closing = self._ending.closing(result)
        try:
            await self._log.end(closing)
        except StaleCopyError as error:  # no answer is lost to concurrent writes
            self._tell(f"{error}; it is written behind what is there now")
            self._store.read_again(self._log.session)
            await self._log.end_again(closing)
        if self._log.problem:
            self._store.keep_for_later(self._log.line, self._log.take_unsaved())
        else:
            self._store.keep_rows(self._log.session)
        requests = closing.result.get("attempts", len(self.steps))
        how = (self.id, self._log.session.id, closing.exit, closing.outcome, requests)
        log.info("turn %s of session %s ended: %s (%s), requests: %d", *how)
        stored = not self._log.problem
        problem = self._log.problem or self._ending.follow_up()
        return self._ending.noted(result, stored, problem) if problem else result

    async def _suspend(self) -> tuple[Pending, ...]:
        """Make the turn resumable by any process. Return its unanswered pending items."""
        await self._store.suspend(self._log.fence)
        asked = PendingItems(lambda: self._store.database).of_turn(self.id)
        waits = tuple(one for one in asked if one.answered is None)
        self._ending.suspended(waits)
        log.info("turn %s is suspended: %s", self.id, ", ".join(one.id for one in waits))
        return waits

    def _leave(self) -> None:
        """Release the session of a turn that stops before its end, and can be entered again."""
        held = self._holding
        if held:
            self._log.at_rest()
            self._store.let_go(self.id, self._log.fence.epoch)
        self._release()
        if held:  # only now: a listener may resume the turn at once
            self.gate.closed("left")

    def _release(self) -> None:
        self._store.fences.release(self._log.fence)
        self._holding = False


# ----------------------------------------------------------------------------------------------------
# ``DurableTurns``: starts, resumes and forks the turns of one table in one store, for ``Agent`` and
# ``Workflow`` alike.
#
# The three ways to a turn differ only in the source of its state and in how it takes its session. A new turn
# is written with the session that holds it. A resumed one is claimed in the store and read again after that,
# because its former process may have written up to that moment; it continues with the recording of its last
# visit. A fork copies what it needs into its own session. The caller builds the state, because it alone knows
# its class, and gets a ``DurableTurn`` that has not moved.


EnterBehind = Callable[[Fence], Awaitable[Begun]]
"""Takes the session of an existing turn, inside its fence."""
Continue = Callable[[Position, Session, EnterBehind], DurableTurn[Result]]
"""Builds the turn that continues from a position in a session."""


@dataclass(frozen=True)
class DurableTurns(Generic[Result]):
    """``tell`` receives lines for people; turns wait at the ``limiter`` until they may run; ``recorded``
    reads the recording of an interrupted visit from the journal."""

    kind: TurnKind
    machine: Machine
    store: Store
    watch: Watch
    tell: Callable[[str], None] = lambda text: None
    limiter: TurnLimiter | None = None
    recorded: ReadRecording = Recording.of

    @property
    def journal(self) -> Turns:
        """The record of this store's turns: moves, requests, snapshots and results."""
        return Turns(self.store.database)

    def resume(
        self, session_or_turn_id: str, claim: Claim | None, continued: Continue[Result]
    ) -> DurableTurn[Result]:
        """Return an unfinished turn, at the point where its process ended. Raises ``ConfigError`` when there
        is nothing to resume, ``SessionBusy`` while another turn has the session."""
        info = find_turn(self.store, session_or_turn_id).moved_by(self.kind.table.name)
        session = self.store.resumable(info, claim)
        position = position_of(self.store, info.id, recorded=self.recorded)

        async def enter(fence: Fence) -> Begun:
            return await take_over(self.store, position, session, claim, fence, recorded=self.recorded)

        return continued(position, session, enter)

    def fork(
        self, turn_id: str, at: int, edited: Callable[[Position], Position], continued: Continue[Result]
    ) -> DurableTurn[Result]:
        """Return a new turn, in its own session, that begins where ``turn_id`` was after ``at`` moves, with
        the changes made by ``edited``. The old turn stays unchanged. Raises ``ConfigError``."""
        expect_name("turn_id", turn_id, "the id of a turn")
        self.journal.info(turn_id).moved_by(self.kind.table.name)
        position = edited(position_of(self.store, turn_id, at, recorded=self.recorded))
        session = self.store.new_session()
        write = fork_turn(self.store, position, session, new_turn_id(session), self.kind.table.digest)

        async def enter(fence: Fence) -> Begun:
            await self.store.write(write)
            return Begun()

        return continued(position, session, enter)

    def turn(
        self,
        state: Any,
        log: TurnLog,
        gate: PausePoint,
        perform: Perform,
        enter: Enter,
        ending: TurnEnding[Result],
        *,
        steps: Sequence[Step] = (),
        bugs: list[BaseException] | None = None,
        debug: bool = False,
    ) -> DurableTurn[Result]:
        """Assemble one turn. ``steps``: the moves that it has made already. ``bugs``: the list that collects
        bugs in this process. ``debug``: raise the first of them."""
        watch = watcher(self.kind.table, state, self.watch, steps)
        runner = Runner(state, self.machine, self.kind.states, perform, log, watch, bugs)
        return DurableTurn(
            state, runner, self.store, log, enter, ending, gate, steps,
            tell=self.tell, limiter=self.limiter, debug=debug,
        )  # fmt: skip

    def steps_before(self, position: Position, seq: int) -> Sequence[Step]:
        """Return the moves made before ``position`` by a turn that continues there."""
        return self.journal.steps(position.turn.id, 1, seq) if seq else []


def new_turn_id(session: Session) -> str:
    """Return an id for the next turn of a session."""
    return f"{session.id}-{uuid.uuid4().hex[:8]}"
