"""``SessionService``: operations on sessions and turns, shared by all servers and independent of protocols.

A message is queued in the store before its sender learns of its turn, and a worker runs it: one in this
process, or those of a dispatcher. So turns survive the end of a process here as they do elsewhere, by the
same rules: the row of the queue, the claim, the journal."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.approvals.service import answer as answer_to
from fsm_agent.composition.turn_wiring import TURN, edit_turn
from fsm_agent.conversation.parts import parts_of
from fsm_agent.conversation.result import TurnResult, next_turn_id
from fsm_agent.dispatch.dispatcher import DIGEST, Dispatcher, InProcess, Order, cancel, control, submit
from fsm_agent.dispatch.follow import (
    Follower,
    LiveTurn,
    LiveTurns,
    Place,
    ServedEvent,
    read_result,
    recorded_events,
    still_queued,
    void,
)
from fsm_agent.dispatch.worker import App, Worker
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy, TurnSuspended
from fsm_agent.runtime.events import Voided
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.conversation_journal import ConversationRecording
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.kept_values import OF_SESSIONS, KeptValues
from fsm_agent.sessions.store.pending import Pending, PendingItems
from fsm_agent.sessions.store.queued import ATTENDED, find_queued, first_session, forget_ended
from fsm_agent.sessions.store.rewind import fork_turn, position_of
from fsm_agent.sessions.store.rows import compaction_chain
from fsm_agent.sessions.turn import new_turn_id

audit = logging.getLogger("fsm_agent.audit")
SCOPES = ("read", "run", "approve", "admin")
"""Permissions of a key: read its sessions; run turns, which includes reading; answer approvals; everything,
in all sessions."""
OWNERS = f"serve{OF_SESSIONS}"
"""Key under which the store records the owner of each session."""
SWEEP, AGE = 0.5, 1.0
LOOK = 0.1
"""Seconds between polls of a turn that another process runs."""
BUSY = "another turn of this session is running"
LASTING = ("always", "never")
"""Answers that apply to all sessions of the home."""
_OWN = (
    "INSERT INTO kept_values (extension, key, value) VALUES (?, ?, ?) ON CONFLICT (extension, key) DO NOTHING"
)
_FREE = "UPDATE turns SET owner = NULL WHERE id = ?"
_QUEUE_BEGUN = (
    "INSERT INTO queued (id, session, digest, at, begun) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
LONGEST_SESSION, LONGEST_TURN = 128, 160
"""Characters of an id. That of a turn may begin with that of its session."""


class ServiceError(FsmAgentError):
    """An error to report in a protocol's own format: ``status`` of HTTP, and a ``code`` of one word."""

    status, code = 500, "failed"


class NotFound(ServiceError):
    """No such session, turn or question, or it belongs to another key."""

    status, code = 404, "not_found"


class Unauthorized(ServiceError):
    """The key is missing or wrong."""

    status, code = 401, "unauthorized"


class Forbidden(ServiceError):
    """The key lacks the scope."""

    status, code = 403, "forbidden"


class Leaving(ServiceError):
    """This server is shutting down; another one continues the turn."""

    status, code = 503, "leaving"


class Busy(ServiceError):
    """Another turn of this session is running, or the request is not possible now."""

    status, code = 409, "conflict"


class BadRequest(ServiceError):
    """The request is invalid."""

    status, code = 400, "bad_request"


class TooLarge(ServiceError):
    """The request is larger than allowed."""

    status, code = 413, "too_large"


class TooMany(ServiceError):
    """A limit on concurrent work of this key or this server is reached."""

    status, code = 429, "too_many"


@dataclass(frozen=True, slots=True)
class Caller:
    """The key of a request: its id, name, and scopes."""

    id: str
    name: str
    scopes: frozenset[str]

    @property
    def admin(self) -> bool:
        """Whether everything is allowed, in all sessions."""
        return "admin" in self.scopes

    def need(self, scope: str) -> None:
        """Raise ``Forbidden`` without this scope."""
        implied = {"read": {"run", "admin"}}.get(scope, {"admin"})
        if not self.scopes & {scope, *implied}:
            raise Forbidden(f"this key lacks the scope {scope}")


LOCAL = Caller("local", "the user of this machine", frozenset(SCOPES))
"""The caller on standard input and output."""


class SessionService:
    """The sessions of one store, for callers through any protocol.

    ``make_agent``: a function without parameters, or with one (the order), that returns an ``Agent`` or
    ``(Agent, deps)``; called once per turn. ``dispatcher``: where turns are queued for workers elsewhere; by
    default they run here, while the service is open. ``most_turns``: maximum at once in this process;
    ``most_of_key``: maximum unfinished turns of one key. ``attended``: a person is at this process. Then the
    agents that ``make_agent`` returns are used as they are, turns are not offered to other processes, and
    unfinished turns are resumed only on request. ``name``: the agent's name, which protocols use as a model
    name. ``sweep``: seconds between checks for turns that no process runs and that were queued at least
    ``age`` seconds ago."""

    def __init__(
        self,
        make_agent: Callable[..., Any],
        store: Store,
        *,
        dispatcher: Dispatcher | None = None,
        most_turns: int = 256,
        most_of_key: int = 512,
        attended: bool = False,
        name: str = "agent",
        sweep: float = SWEEP,
        age: float = AGE,
    ) -> None:
        self.store, self.name = store, name
        self._live = LiveTurns(self._count_recorded)
        self._app = App.of(
            make_agent, "make_agent", store, suspends=True, keeps=attended, expect=self._live.expect
        )
        self._here, self._attended = dispatcher is None, attended
        self._dispatcher: Dispatcher = InProcess() if dispatcher is None else dispatcher
        self._sweep, self._age = None if attended else sweep, age
        self._most_turns, self._most_of_key = most_turns, most_of_key
        self._turns = Turns(store.database)
        self._items = PendingItems(lambda: store.database, store.now)
        self._follower, self._owners = Follower(store), KeptValues(store, OWNERS)
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._started: dict[str, set[str]] = {}  # turns by key

    # Its life

    async def open(self) -> None:
        """Begin to run turns, including those that a dead process left."""
        if self._here:
            worker = Worker(self.store, self._app, self._dispatcher, sweep=self._sweep, age=self._age)
            if self._attended:
                await forget_ended(self.store)  # without sweeps, nothing else does
            self._serving = asyncio.create_task(worker.run(self._most_turns, self._stop))

    @property
    def leaving(self) -> bool:
        """Whether this process is shutting down: it begins no more turns."""
        return self._stop.is_set()

    def leave(self) -> None:
        """Begin to shut down: each turn that runs here stops after its next move, and any process continues
        it. Event streams then end with ``Leaving``."""
        self._stop.set()

    async def aclose(self) -> None:
        """Call ``leave`` and wait for the turns that run here; attended ones stop immediately."""
        self.leave()
        if self._attended and isinstance(self._dispatcher, InProcess):
            self._dispatcher.drop()
        if self._serving is not None:
            await self._serving
        else:
            await self._dispatcher.aclose()
        self._live.close()

    async def __aenter__(self) -> SessionService:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # Turns

    async def start(
        self,
        caller: Caller,
        content: Any,
        session_id: str | None = None,
        *,
        turn_id: str = "",
        waits: bool = False,
        **options: Any,
    ) -> str:
        """Begin a turn, and return its id once it is in the store. ``session_id``: the session to continue,
        or the id of a new one. ``turn_id``: using the same one again has no effect. ``waits``: queue behind a
        running turn of the session, which otherwise raises ``Busy``. ``options``: of ``Agent.start``, as JSON
        values."""
        caller.need("run")
        if self.leaving:
            raise Leaving("this server is stopping")
        content = _read_content(content)
        if session_id is not None:
            _check_id("session", session_id, LONGEST_SESSION)
            if session_id.startswith("c-"):
                raise BadRequest(f"no id of a session: {session_id[:40]!r}; allowed: one not of a child, c-…")
        if turn_id:
            _check_id("turn", turn_id, LONGEST_TURN)
        if turn_id and (begun := self._session_of(turn_id)) is not None:
            other = session_id is not None and first_session(self.store, session_id) != begun
            if other or self._owners.get(begun) != caller.id:
                raise Busy("a turn of this id is in another session")
            return turn_id
        self._count(caller)
        if session_id is None:
            session = f"s-{uuid.uuid4().hex[:12]}"
            owned = self._write_owner(caller, session)  # mostly in one transaction with the turn
        else:
            session = await self._claim_session(caller, session_id)
            owned = None
            turn_id = turn_id or f"{session}-{uuid.uuid4().hex[:8]}"
            if not waits:
                await self._refuse_if_continued(session, turn_id)
        try:
            order = await submit(
                self.store, self._dispatcher, content, session,
                turn_id=turn_id, attended=self._attended, waits=waits or session_id is None, **options,
            )  # fmt: skip
        except SessionBusy:
            raise Busy(BUSY) from None
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        finally:
            if owned is not None:
                await owned
        self._started[caller.id].add(order.turn)
        self._audit(caller, "start", session=order.session, turn=order.turn)
        return order.turn

    def events(self, caller: Caller, turn_id: str, after: str = "") -> AsyncIterator[ServedEvent]:
        """Return the events of a turn, and of those that it hands the conversation over to: each event once,
        after the one with the id ``after``, until the turn has ended or is suspended; ``result`` says which.
        If a process that sent some of them has ended, a ``Voided`` event says what to drop. Raises
        ``Leaving`` after the last event of a process that shuts down."""
        caller.need("read")
        self._refuse_turn_of_others(caller, turn_id)
        hop, place = _read_id(after)
        for _ in range(hop):
            if (following := self._follower_of(turn_id)) is None:
                raise BadRequest("no id of an event of this turn")
            turn_id = following
        return self._follow(turn_id, hop, place)

    async def _follow(self, turn_id: str, hop: int, place: Place) -> AsyncIterator[ServedEvent]:
        while True:
            async for one in self._events(turn_id, place, follows=hop > 0):
                yield one._replace(id=f"{hop}:{one.id}") if hop else one
            if (following := self._follower_of(turn_id)) is None:
                return
            turn_id, hop, place = following, hop + 1, Place()

    async def result(self, caller: Caller, turn_id: str) -> TurnResult:
        """Wait for the end of a turn, and return its result. Raises ``TurnSuspended`` if it waits for an
        answer, ``Busy`` if it was withdrawn, ``BadRequest`` if it cannot begin."""
        caller.need("read")
        self._refuse_turn_of_others(caller, turn_id)
        await self._wait_for_end(turn_id)
        while (following := self._follower_of(turn_id)) is not None:
            turn_id = following
            await self._wait_for_end(turn_id, follows=True)
        live = self._live.get(turn_id)
        if live is not None and live.how == "ended":
            return live.result  # type: ignore[no-any-return]
        return read_result(self._turns, self._turns.info(turn_id))

    def about(self, caller: Caller, turn_id: str) -> dict[str, Any]:
        """Return a turn's status as JSON values; ``status``: queued, refused, running, suspended or ended."""
        caller.need("read")
        session = self._find_session_of(caller, turn_id)
        about: dict[str, Any] = {"turn": turn_id, "session": session}
        if not self._exists(turn_id):
            try:
                still_queued(self.store, turn_id)
            except ConfigError as error:
                return {**about, "status": "refused", "problem": str(error)}
            return {**about, "status": "queued"}
        info = self._turns.info(turn_id)
        about |= {"state": info.state, "moves": info.seq, "began": info.began}
        if info.ended is not None:
            return {
                **about,
                "status": "ended",
                "exit": info.exit,
                "outcome": info.outcome,
                "ended": info.ended,
            }
        waits = [one for one in self._items.of_turn(turn_id) if one.answered is None]
        suspended = info.owner is None and bool(waits)
        more = {"pending": [one.to_dict() for one in waits]} if suspended else {}
        return {**about, "status": "suspended" if suspended else "running", **more}

    # Commands to turns

    async def steer(self, caller: Caller, turn_id: str, text: str) -> None:
        """Send text to a running turn; the model reads it with its next request. Raises ``Busy`` if it does
        not run."""
        caller.need("run")
        self._find_session_of(caller, turn_id)
        if not isinstance(text, str) or not text.strip():
            raise BadRequest("the text is empty")
        hears = (None, "suspended") if self._attended else (None,)  # an attended agent reads it later
        if (live := self._live.get(turn_id)) is not None and live.how in hears:
            live.signals.steer(text)
        elif self._is_run(turn_id):
            await control(self.store, turn_id, "steer", {"text": text})
        else:
            raise Busy("the turn is not running")
        self._audit(caller, "steer", turn=turn_id)

    async def interrupt(self, caller: Caller, turn_id: str, message: str | None = None) -> None:
        """Interrupt a running turn, or withdraw one that has not begun. No effect on one that has ended."""
        caller.need("run")
        self._find_session_of(caller, turn_id)
        if message is not None and not isinstance(message, str):
            raise BadRequest("the message is not text")
        if (live := self._live.get(turn_id)) is not None and live.how is None:
            live.signals.interrupt(message)
        elif self._is_run(turn_id):
            await control(self.store, turn_id, "interrupt", {"message": message})
        elif find_queued(self.store, turn_id) is not None:
            await cancel(self.store, self._dispatcher, turn_id)
            await self._continue(turn_id)
        self._audit(caller, "interrupt", turn=turn_id)

    async def resume(self, caller: Caller, turn_id: str) -> None:
        """Continue an unfinished turn, or a suspended one whose answer has arrived. No effect on one that has
        ended."""
        caller.need("run")
        self._find_session_of(caller, turn_id)
        if self._exists(turn_id) and self._turns.info(turn_id).ended is None:
            if not await self._continue(turn_id):
                raise Busy("this turn is continued by the process that a person began it in")
            self._audit(caller, "resume", turn=turn_id)

    async def fork(self, caller: Caller, turn_id: str, at: int, edit: Mapping[str, Any] | None = None) -> str:
        """Begin a turn in a new session from this one's state after ``at`` moves, with the changes of
        ``edit`` (see ``fsm_agent.sessions.store.edits.edit_position``); return its id."""
        caller.need("run")
        self._find_session_of(caller, turn_id)
        if (edit or {}).keys() & {"counters", "fields"} and not caller.admin:
            raise Forbidden("counters and fields are changed by keys with the scope admin")
        self._count(caller)
        try:
            info = self._turns.info(turn_id).moved_by(TURN.name)
            position = position_of(self.store, info.id, at, ConversationRecording.of)
            position = edit_turn(position, edit or {})
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        session = self.store.new_session()
        forked = new_turn_id(session)
        write = fork_turn(self.store, position, session, forked, DIGEST)
        await self._claim_session(caller, session.id)
        await self.store.write(write)
        await self.store.write(lambda c: c.execute(_FREE, (forked,)) and None)
        await self._continue(forked)
        self._started[caller.id].add(forked)
        self._audit(caller, "fork", turn=forked, of=turn_id)
        return forked

    async def _continue(self, turn_id: str) -> bool:
        """Queue a turn that has begun, so that any process finds it after a crash, and submit it. A turn that
        is attended elsewhere is left to that process; then return false."""
        session = self._session_of(turn_id)
        assert session is not None
        at = self.store.now()
        values = (turn_id, session, ATTENDED if self._attended else DIGEST, at, at)
        await self.store.write(lambda c: c.execute(_QUEUE_BEGUN, values) and None)
        queued = find_queued(self.store, turn_id)
        if not self._attended and queued is not None and queued.digest == ATTENDED:
            return False
        try:
            await self._dispatcher.submit(Order(session, turn_id, DIGEST))
        except ConfigError as error:
            raise Busy(str(error)) from None
        return True

    def _is_run(self, turn_id: str) -> bool:
        """Return whether a process runs the turn."""
        if not self._exists(turn_id):
            return False
        info = self._turns.info(turn_id)
        return info.ended is None and bool(self.store.owners.alive(info.owner))

    # Pending questions

    def pending(self, caller: Caller, turn_id: str = "") -> list[Pending]:
        """Return what the caller's suspended turns, or one turn, wait for, oldest first."""
        caller.need("read")
        if turn_id:
            self._find_session_of(caller, turn_id)
            return [one for one in self._items.of_turn(turn_id) if one.answered is None]
        return [one for one in self._items.open() if self._may_see(caller, one)]

    async def answer(self, caller: Caller, pending_id: str, value: Any, *, pattern: str = "") -> Pending:
        """Answer a pending question of a suspended turn, and continue the turn; ``Agent.answer`` lists the
        answers. An approval needs the scope ``approve``, and one for all sessions ``admin``. Raises ``Busy``
        for a second answer, or one that is no longer awaited."""
        there = [one for one in self._items.open() if one.id == pending_id and self._may_see(caller, one)]
        if not there:
            if self.store.database.select("SELECT 1 FROM pending WHERE id = ?", pending_id):
                self._find_session_of(caller, self._root_of(self._turn_of_item(pending_id)))
                raise Busy("this was answered already, or is no longer awaited")
            raise NotFound("nothing of this id waits")
        (item,) = there
        caller.need("approve" if item.kind == "approval" else "run")
        if item.kind == "approval" and value in LASTING:
            caller.need("admin")
        try:
            item = await asyncio.to_thread(
                answer_to, self._items, item.id, value, pattern=pattern, by=f"{caller.name} ({caller.id})"
            )
        except ConfigError as error:
            kind = Busy if self._turn_has_moved(pending_id) else BadRequest
            raise kind(str(error)) from None
        root = self._root_of(item.turn)
        self._audit(caller, "answer", turn=root, item=item.id, kind=item.kind, said=item.said)
        now = self.store.now()
        if all(one.is_settled(now) for one in self._items.of_turn(root)):
            await self._continue(root)
        return item

    def _turn_has_moved(self, pending_id: str) -> bool:
        return pending_id not in {one.id for one in self._items.open()}

    def _turn_of_item(self, pending_id: str) -> str:
        return str(self.store.database.select("SELECT turn FROM pending WHERE id = ?", pending_id)[0][0])

    def _may_see(self, caller: Caller, item: Pending) -> bool:
        try:
            self._find_session_of(caller, self._root_of(item.turn))
        except NotFound:
            return False
        return True

    def _root_of(self, turn_id: str) -> str:
        """Return the outermost turn that a child turn works for."""
        while (info := self._turns.info(turn_id)).parent is not None and info.forked_at is None:
            turn_id = info.parent
        return turn_id

    # Sessions

    def sessions(self, caller: Caller, most: int = 100) -> list[dict[str, Any]]:
        """Return the caller's sessions, the most recently used first; all sessions for ``admin``."""
        caller.need("read")
        rows = self.store.database.select(
            "SELECT s.id, s.title, s.created, s.touched, k.value FROM sessions s JOIN kept_values k"
            " ON k.extension = ? AND k.key = s.id WHERE k.value = ? OR ? ORDER BY s.touched DESC LIMIT ?",
            OWNERS, json.dumps(caller.id), int(caller.admin), most,
        )  # fmt: skip
        return [
            {
                "session": session,
                "title": title,
                "created": created,
                "touched": touched,
                "key": json.loads(key),
            }
            for session, title, created, touched, key in rows
        ]

    def load(self, caller: Caller, session_id: str) -> dict[str, Any]:
        """Return a session: its title, its messages, its turns, newest last."""
        caller.need("read")
        first = self._find_session(caller, session_id)
        session = self.store.newest(session_id)
        with self.store.database.reading() as c:
            chain = compaction_chain(c, session.id)
        turns = [one for name in chain for one in self._turns.recent(100, name)]
        return {
            "session": first,
            "title": session.title,
            "messages": [row.to_dict() for row in session.rows],
            "turns": [
                {"turn": one.id, "asked": one.asked, "began": one.began, "ended": one.ended, "exit": one.exit}
                for one in reversed(turns)
            ],
        }

    # Following one turn

    async def _events(self, turn_id: str, after: Place, follows: bool = False) -> AsyncIterator[ServedEvent]:
        """Yield the events of one turn: live ones if it runs here, else those from the journal."""
        while True:
            live, last = self._live.get(turn_id), ""
            if live is not None and live.how != "left":
                async for one in self._live_events(live, after):
                    yield one
                    last = one.id
            else:
                for one in self._recorded_events(turn_id, after):
                    yield one
                    last = one.id
            after = Place.read(last) if last else after
            if self._is_over(turn_id, follows):
                return
            if self._live.get(turn_id) is live:
                await self._live.wait_for_arrival(turn_id, LOOK)

    def _recorded_events(self, turn_id: str, after: Place) -> Iterator[ServedEvent]:
        if not self._exists(turn_id):
            return
        info = self._turns.info(turn_id)
        reached = Place(info.seq, self._count_recorded(turn_id, info.seq))
        if after.attempt or after.recorded > reached:
            after = min(after.recorded, reached)
            yield void(after, turn_id)
        yield from recorded_events(self._turns, info, after)

    async def _live_events(self, live: LiveTurn, after: Place) -> AsyncIterator[ServedEvent]:
        number = live.number_behind(after)
        while True:
            if number is None:
                for one in self._events_before(live, after):
                    yield one
                    after = Place.read(one.id) if isinstance(one.event.values, Voided) else after
                number = live.number_before(max(after.recorded, live.begin))
            over = live.how is not None
            if (kept := live.read(number)) is None:
                number = None
                continue
            fresh, number = kept
            for one in fresh:
                yield one
            if fresh:
                after = Place.read(fresh[-1].id)
            if over and not fresh:
                return
            await live.wait_for_event(number)

    def _events_before(self, live: LiveTurn, after: Place) -> Iterator[ServedEvent]:
        """Yield the journal's events after ``after``, up to the beginning of the live ones. Events of another
        attempt after that position are void."""
        from_journal = after.within and not after.attempt
        if after.attempt or after.recorded > live.begin:
            after = after.recorded if from_journal else min(after.recorded, live.begin)
            yield void(after, live.id)
        if after < live.begin:
            yield from recorded_events(self._turns, self._turns.info(live.id), after, live.begin)

    async def _wait_for_end(self, turn_id: str, follows: bool = False) -> None:
        """Wait until a turn has ended. Raises ``TurnSuspended``."""
        while True:
            live = self._live.get(turn_id)
            if live is not None:
                await live.wait_for_stop()
            if self._is_over(turn_id, follows):
                break
            if self._live.get(turn_id) is live:
                await self._live.wait_for_arrival(turn_id, LOOK)
        if (info := self._turns.info(turn_id)).ended is None:
            self._follower.refuse_if_suspended(info)

    def _is_over(self, turn_id: str, follows: bool) -> bool:
        """Return whether a turn has ended or waits for an answer. Raises ``Busy`` or ``BadRequest`` if it
        never begins, ``Leaving`` if this server stops."""
        live = self._live.get(turn_id)
        if live is not None and live.how in (None, "ended"):
            return live.how is not None
        if self.leaving:
            raise Leaving("this server is stopping; another one continues the turn")
        if not self._exists(turn_id):
            if not follows:
                try:
                    still_queued(self.store, turn_id)
                except ConfigError as error:
                    cannot = (queued := find_queued(self.store, turn_id)) is not None and queued.problem
                    raise (BadRequest if cannot else Busy)(str(error)) from None
            return False
        info = self._turns.info(turn_id)
        if info.ended is not None:
            return True
        try:
            self._follower.refuse_if_suspended(info)
        except TurnSuspended:
            return True
        return False

    def _count_recorded(self, turn_id: str, seq: int) -> int:
        """Count the leading exchanges of this visit that are complete in the journal."""
        missing = [one.ordinal for one in self._turns.effects(turn_id, seq) if one.reply is None]
        there = {one.ordinal for one in self._turns.effects(turn_id, seq)}
        return min(missing, default=len(there))

    def _exists(self, turn_id: str) -> bool:
        return bool(self.store.database.select("SELECT 1 FROM turns WHERE id = ?", turn_id))

    def _follower_of(self, turn_id: str) -> str | None:
        """Return the next turn if this one handed the conversation over."""
        live = self._live.get(turn_id)
        if live is not None and live.how == "ended":
            handed = live.result.turn_exit_reason == "handed_over"
            return next_turn_id(live.result.session_id, turn_id) if handed else None
        if not self._exists(turn_id):
            return None
        info = self._turns.info(turn_id)
        return next_turn_id(info.session, turn_id) if info.exit == "handed_over" else None

    # Ownership of sessions

    async def _claim_session(self, caller: Caller, session: str) -> str:
        """Return the first session of the conversation. A new one becomes the caller's. Raises ``NotFound``
        if another key owns it."""
        first = first_session(self.store, session)
        owner = self._owners.get(first)
        if owner is None and not self._is_stored(first):
            await self._write_owner(caller, first)
            owner = self._owners.get(first)  # another key may have been faster
        return self._check_owner(caller, first, owner)

    def _write_owner(self, caller: Caller, session: str) -> asyncio.Future[None]:
        """Record the session's owner unless it has one; the store executes its jobs in order."""
        values = (OWNERS, session, json.dumps(caller.id))
        done = self.store.database.submit(lambda c: c.execute(_OWN, values) and None)
        return asyncio.wrap_future(done)

    def _is_stored(self, session: str) -> bool:
        return bool(self.store.database.select("SELECT 1 FROM sessions WHERE id = ?", session))

    def _find_session(self, caller: Caller, session: str) -> str:
        """Return the first session of a conversation that the caller may see. Raises ``NotFound``."""
        first = first_session(self.store, session)
        return self._check_owner(caller, first, self._owners.get(first))

    def _check_owner(self, caller: Caller, first: str, owner: str | None) -> str:
        if owner == caller.id or (caller.admin and (owner is not None or self._is_stored(first))):
            return first
        raise NotFound("no such session")

    def _session_of(self, turn_id: str) -> str | None:
        """Return the first session of a turn's conversation."""
        rows = self.store.database.select("SELECT session FROM turns WHERE id = ?", turn_id)
        if not rows:
            queued = find_queued(self.store, turn_id)
            return None if queued is None else queued.session
        return first_session(self.store, rows[0][0])

    def _find_session_of(self, caller: Caller, turn_id: str) -> str:
        """Return the session of a turn that the caller may see. Raises ``NotFound``."""
        session = self._session_of(turn_id)
        try:
            return self._find_session(caller, session or "")
        except NotFound:
            raise NotFound("no such turn") from None

    def _refuse_turn_of_others(self, caller: Caller, turn_id: str) -> None:
        """Raise ``NotFound`` for a turn that the caller may not see. Turns begun here need no query."""
        if turn_id not in self._started.get(caller.id, ()):
            self._find_session_of(caller, turn_id)

    async def _refuse_if_continued(self, first: str, turn_id: str) -> None:
        """Raise ``Busy`` if the dispatcher has another turn of the session: the store does not know who will
        continue one that was suspended."""
        waiting = [one.turn for one in await self._dispatcher.waiting(first) if one.turn != turn_id]
        if not all(map(self._is_done, waiting)):
            raise Busy(BUSY)

    def _count(self, caller: Caller) -> None:
        """Raise ``TooMany`` if the key has too many unfinished turns."""
        mine = self._started.setdefault(caller.id, set())
        if len(mine) >= self._most_of_key:
            mine -= {one for one in mine if self._is_done(one)}
        if len(mine) >= self._most_of_key:
            raise TooMany(f"this key has {len(mine)} unfinished turns")

    def _is_done(self, turn_id: str) -> bool:
        try:
            return self._is_over(turn_id, False)
        except ServiceError:
            return True

    def _audit(self, caller: Caller, what: str, **more: Any) -> None:
        audit.info("%s", json.dumps({"do": what, "key": caller.id, "name": caller.name, **more}))


def _check_id(of: str, id: str, longest: int) -> None:
    if _NAME.fullmatch(id) is None or len(id) > longest:
        raise BadRequest(
            f"no id of a {of}: {id[:40]!r}{'…' * (len(id) > 40)}, {len(id)} characters; allowed: up to"
            f" {longest} letters, digits, and characters of ._:-, beginning with a letter or digit"
        )


def _read_content(content: Any) -> Any:
    """Validate a user message: text, or content parts as JSON. Raises ``BadRequest``."""
    if isinstance(content, str) and content.strip():
        return content
    if not isinstance(content, Sequence) or not content or isinstance(content, str):
        raise BadRequest("the message is empty")
    if not all(isinstance(one, Mapping) and isinstance(one.get("type"), str) for one in content):
        raise BadRequest("a message is text, or a list of content parts, each an object with a type")
    try:
        parts_of(content)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    return [dict(one) for one in content]


def _read_id(text: str) -> tuple[int, Place]:
    """Parse an event id as (number of handovers before it, its position). Raises ``BadRequest``."""
    hops, colon, rest = text.rpartition(":")
    if colon and not (hops.isascii() and hops.isdigit() and len(hops) < 5):
        raise BadRequest(f"no id of an event: {text[:40]!r}")
    try:
        return int(hops or 0), Place.read(rest)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
