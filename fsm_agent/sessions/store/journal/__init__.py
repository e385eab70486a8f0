"""``TurnLog``: the journal of one running turn.

Theory of operation
-------------------
The journal answers one question: after a crash at any point, what is known to have happened? Each turn has
one log, and only the log writes for the turn.

*Who writes.* The loop that runs the turn gathers jobs, functions of a connection. It hands them over in
groups (``Handover``), and one thread per database writes them, in order, many turns in one transaction. Every
group calls ``Fence.refuse`` first, in its own transaction: it compares the epoch of the turn with the one
stored. A process that lost the turn finds another epoch; none of its group is written, and the turn stops
with ``OwnershipLost``. All other checks for a loss (polling a few times a second, ``turn.lose``) only detect
it earlier.

*When.* Writing is asynchronous; waiting is the exception:

- ``asked`` records the intent of a request before it is performed. The request itself declares what must be
  on disk before that (``fsm_agent.request.Flush``): a tool that is not safe to repeat needs its own intent, a
  request to a model needs the row that paid for it, a pure tool needs nothing.
- ``got`` records the reply in place of the intent, with the transcript rows and the tokens that came
  with it, and does not wait. Losing a reply means asking a model again, running a pure tool again, or
  reporting an unknown outcome; it never means running an unsafe tool twice.
- ``moved`` records the move together with all changes since the last one, so a move is never on disk
  without its changes. It waits only when a person or a debugger watches each move, and at the last one.
- ``later``, ``ended`` and ``at_rest`` wait: others rely on what they report.

An iteration of an agent is usually one commit. ``conversation_journal.FLUSHES`` is the complete list,
and docs/sessions.md prints it.

*Order.* Groups are written in the order of their handover, and a group whose predecessor failed also fails
(``Handover.lost``). So the database always has a prefix of the turn's history: a reply without its intent,
or a second move without the first, cannot occur. A lost group is handed over again, before later ones
(``_take_back``).

*What the journal holds.* The snapshot is written once, when the turn begins; each move has the difference
from the one before. Rows of the transcript that came after the last move are provisional: resuming sets them
aside and runs the visit again, which writes new ones.

*When a visit is run again,* ``Recording`` answers its requests: by place, and only if the request equals the
recorded one. A request that was in flight is repeated if that is safe; otherwise it is answered with its own
``in_doubt()``, and the outcome is recorded as unknown. A person's approval is never taken from the record.

What would break this: an effect that starts before ``asked`` has returned can run twice. A job that writes
for the turn outside of ``_write`` is not fenced. A write between two groups (a second writer, a second
connection) breaks the prefix. ``TurnLog`` writes turns of any table; ``conversation_journal`` adds what a
transcript needs. (Why: decisions 29 and 32 and 62.)"""

# Messages are provisional until their move. The message with a reply's calls is stored before a tool starts,
# during the visit. When the turn resumes from its last move, later messages are set aside and written again
# by the same visit. So nothing needs matching, and no message is stored twice.

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fsm_agent.errors import JournalError, StaleCopyError, StoreError
from fsm_agent.fsm.journal import (
    UNKNOWN,
    ExactTracker,
    Exchange,
    Step,
    Tracker,
    is_kept_as,
    read_reply,
    reply_record,
    request_record,
)
from fsm_agent.request import (
    Flush,
    Needed,
    NotYet,
    declaration_of,
    effect_of,
    flush_of,
    list_entry,
    reusable,
)
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import rows
from fsm_agent.sessions.store.database import Database, Job, SqlConnection, conflicts, must
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.read import Effect
from fsm_agent.sessions.store.pending import note_waits
from fsm_agent.sessions.store.rows import (
    UNREAD,
    Checked,
    Contents,
    deduplicate,
    json_with_checksum,
    shorten_changes,
    with_checksum,
)

# ----------------------------------------------------------------------------------------------------
# Known replies of a visit that a crash, a fork, or a person interrupted. They are not requested again.
#
# States are pure, so a visit that runs again makes the same requests in the same order. A request is
# identified by its place in the visit and its contents. ``Recording`` is for turns of any table;
# ``ConversationRecording`` is for turns that talk to a model.


Origin = Literal["", "by hand", "taken over"]
"""The source of a reply: the world, a person at a fork, or the forked turn."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request in the journal. ``reply`` is ``None`` while it is in flight. ``foreign``: it is in the
    journal of the turn that this one was forked from."""

    kind: str
    request: dict[str, Any]
    status: str
    reply: Any = None
    foreign: bool = False


@dataclass(slots=True)
class Recording:
    """Replies by (ordinal, place) of one visit. ``doubts`` collects (name, id) of requests with an unknown
    effect, ``origins`` the source of replies that are not in this turn's journal. ``waiting``: calls whose
    results come later, with the digests of their arguments; they run elsewhere, and are not started again.
    ``resumed``: another process began the visit."""

    entries: dict[tuple[int, int], Recorded] = field(default_factory=dict)
    doubts: list[tuple[str, str]] = field(default_factory=list)
    origins: dict[tuple[int, int], Origin] = field(default_factory=dict)
    resumed: bool = False
    waiting: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, effects: Iterable[Effect], answers: Mapping[str, Any] | None = None) -> Recording:
        """Read a visit from the journal; ``answers``: the stored ``answers()`` of a fork."""
        return cls(
            {
                (one.ordinal, one.place): Recorded(one.kind, one.request, one.status, one.reply)
                for one in effects
            }
        )

    def silent(self) -> bool:
        """Return whether no reply is known. This holds for nearly every visit."""
        return not self.entries

    def distrust(self) -> Recording:
        """Discard the replies of an imported turn: replies recorded by a stranger are requested again, and
        effects that may have happened are in doubt."""
        return Recording({place: replace(entry, reply=None) for place, entry in self.entries.items()})

    def cut_off(self) -> frozenset[str]:
        """Return the keys of calls that were running when their process ended."""
        return frozenset()

    def answered(self) -> frozenset[str]:
        """Return the names of tools with a call in this visit that does not run again."""
        return frozenset()

    def taken_over(self, *, whole: bool = False) -> Recording:
        """Return the recording for a fork: empty, because a fork repeats all requests."""
        return Recording()

    def answers(self) -> dict[str, Any] | None:
        """Return the replies that a fork begins with, as JSON values; ``None`` if there are none."""
        return None

    def reply(self, ordinal: int, place: int, request: Any) -> Any:
        """Return the known reply to this request, or ``UNKNOWN``. An unsafe request that was in flight when
        its process ended gets its own ``in_doubt()`` reply. A person's answer is never taken from the
        record."""
        entry = self.entries.get((ordinal, place))
        if entry is None or entry.kind != type(request).__name__ or not is_kept_as(request, entry.request):
            return UNKNOWN
        if getattr(request, "question_id", None) is not None:
            return UNKNOWN
        if entry.reply is not None and entry.status == "done":
            return read_reply(request, entry.reply) if reusable(request) else UNKNOWN
        if effect_of(request) == "unsafe":
            self.doubts.append((type(request).__name__, f"{ordinal}.{place}"))
            return request.in_doubt()
        return UNKNOWN

    def where(self, ordinal: int, place: int, request: Any) -> tuple[int, int]:
        """Return the (ordinal, place) under which the journal keeps this request."""
        return ordinal, place


_MOVE = f"INSERT INTO transitions VALUES ({', '.join('?' * 15)})"  # noqa: S608 - ours
_COLUMNS = (
    "turn, seq, ordinal, place, state, kind, name, class, key, request, request_crc,"
    " status, reply, reply_crc, at, seconds, origin"
)
_EFFECT = f"INSERT OR REPLACE INTO effects ({_COLUMNS}) VALUES ({', '.join('?' * 17)})"  # noqa: S608 - ours
_NONE = with_checksum("[]")
"""The stored form of an empty list, the most common one."""
AT_REST = 5.0
"""Maximum seconds that a stopped turn waits for its pending writes."""
SENT = 8
"""Pending groups after which completed ones are dropped from the list."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a turn as it is stored: its exit reason, its outcome (``completed``, ``failed``,
    ``partial``, ``interrupted``), the result as JSON values, and for lists the ``model`` that it ran on."""

    exit: str
    outcome: str | None
    result: dict[str, Any]
    model: str = ""


class TurnLog:
    """Writes one turn into the database. ``turn`` is a dataclass with turn_id, state, seq; ``line``: the
    sessions that the turn was in; ``session``: the last of them.

    A failing store stops the turn, which can be resumed: nothing happens that is not recorded. ``looked_at``:
    each move is observed, and committed before it is published.
    """

    looked_at = True
    _tracker: Tracker | ExactTracker

    def __init__(
        self,
        database: Database,
        session: Session,
        turn: Any,
        recording: Recording | None = None,
        now: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.problem = ""
        self.session, self.line = session, [session]
        self._database, self._turn, self._now, self._tell = database, turn, now, tell
        self._recording = recording
        self._jobs: list[Job] = []
        self._moved = False
        self.fence = Fence(turn.turn_id)
        self._sent: list[Handover] = []
        self._begun: dict[tuple[int, int, int], tuple[Any, ...]] = {}  # intents, by the identity of a request
        self._step: Step | None = None
        self._closed = False

    def open(self) -> dict[str, Any]:
        """Record the current state as the baseline for deltas and return the full snapshot. Its session
        has no transcript."""
        self._tracker = ExactTracker(self._turn)
        return self._tracker.start | {"history": [self.session.id, self.session.version, 0, 0], "rows": []}

    def began(self, recording: Recording | None = None) -> None:
        """Start the log of a stored turn. ``recording``: known replies of its visit when it was claimed."""
        self._recording = recording or self._recording

    # The journal

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        if self.fence.why:
            self.fence.check()
        requests = exchange.requests
        if not self._begun and (self._recording is None or self._recording.silent()):
            known: list[Any] = [UNKNOWN] * len(requests)
        else:
            known = [self._recorded_reply(exchange, place, request) for place, request in enumerate(requests)]
        begun = {}
        for place, request in enumerate(requests):
            kind: type = type(request)
            intent = declaration_of(kind).intent
            if known[place] is UNKNOWN and (effect_of(request) != "pure" if intent is None else intent):
                begun[exchange.seq, exchange.ordinal, place] = self._asked_row(exchange, place, request)
        if not begun:
            return self._without_store(exchange, known) if self.problem else known
        self._jobs += [self._intent(row) for row in begun.values()]
        needed = {self.needs(requests[place]) for _, _, place in begun}
        if "all with its intent" in needed or (self._moved and "the row that paid for it" in needed):
            await self._commit()
        else:
            self._hand_over()
        self._begun |= begun
        return self._without_store(exchange, known) if self.problem else known

    def _without_store(self, exchange: Exchange, known: Sequence[Any]) -> Sequence[Any]:
        """Return the replies to the requests while nothing can be written."""
        return known

    def _recorded_reply(self, exchange: Exchange, place: int, request: Any) -> Any:
        """Look up the reply of an earlier process, or of this one: a caller canceled here may ask a second
        time."""
        if (exchange.seq, exchange.ordinal, place) in self._begun and effect_of(request) == "unsafe":
            return request.in_doubt()
        if self._recording is None:
            return UNKNOWN
        doubts = len(self._recording.doubts)
        reply = self._recording.reply(exchange.ordinal, place, request)
        for name, call_id in self._recording.doubts[doubts:]:
            self._tell(
                f"{name} ({call_id}) may or may not have taken effect: the process ended while it ran; it is"
                " not run again"
            )
            self._jobs.append(self._outcome(exchange, place, request, reply, 0.0))
        if (origin := self._recording.origins.get((exchange.ordinal, place))) is not None:
            self._jobs.append(self._outcome(exchange, place, request, reply, 0.0, origin))
        return reply

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        if self.fence.why:
            self.fence.check()
        self._note_rows()
        self._jobs.append(self._outcome(exchange, place, request, reply, seconds))
        kind: type = type(request)
        declared = declaration_of(kind)
        if declared.paid:
            self._jobs += self._costs(request, reply)
        if (exchange.seq, exchange.ordinal, place) in self._begun:  # its intent was handed over
            self._hand_over()
        elif declared.consumes and request.consumes(reply):
            await self._commit()

    async def later(self, exchange: Exchange, place: int, later: NotYet) -> bool:
        self._note_rows()
        if later.kind:
            self._jobs.append(note_waits(self._turn.turn_id, exchange.seq, later, self._now()))
        await self._commit()
        return not self.problem

    async def moved(self, step: Step) -> None:
        if step is not self._step:  # otherwise already recorded, waiting to be written
            delta = self._delta()
            self._jobs.append(self._transition(step, delta))
            self._recording, self._step, self._begun = None, step, {}
            self._moved = True
        if self.looked_at or step.exit is not None:
            await self._commit()
        else:
            self._hand_over()

    async def end(self, closing: Closing) -> None:
        """End the turn: write its result, and release the session. ``problem`` is set when that is not
        stored. Raises ``StaleCopyError``, after which the caller tries ``end_again``, and ``OwnershipLost``:
        the new owner records the end."""
        if not self._closed:  # otherwise already recorded, waiting to be written
            delta = self._delta()
            self._jobs.append(self._end(closing, json_with_checksum(shorten_changes(delta))))
            self._closed = True
        try:
            await self._commit()
        except StaleCopyError:
            self._jobs, self._closed = [], False
            raise
        if not self.problem:
            self.session.revision += 1

    def take_unsaved(self) -> Job | None:
        """Return the job with the writes of an ended turn that the store failed to take."""
        jobs, self._jobs = self._jobs, []
        return (lambda c: self._write(c, jobs)) if jobs else None

    async def end_again(self, closing: Closing) -> None:
        """``ended``, on a fresh copy of the session."""
        try:
            await self.end(closing)
        except StaleCopyError as error:
            self.problem = str(error)

    def at_rest(self) -> None:
        """Wait until all work is durable: the caller stops the turn and releases it next. A lost turn
        writes nothing more."""
        if self.fence.lost:
            self._jobs, self._sent = [], []
            self._disbelieve()
            return
        self._hand_over()
        if self._sent:
            self._database.hurry()
            last = self._sent[-1].future
            wait([last], AT_REST)
            if last.done() and isinstance(last.exception(), StoreError):
                sent, self._sent = self._sent, []
                self._take_back(sent)

    def needs(self, request: Any) -> Needed:
        """Return the writes that must be on disk before the request is performed."""
        return flush_of(request).needs

    # Differences between kinds of turns

    @staticmethod
    def _request_columns(session: Session, request: Any) -> tuple[str, str, str, str, int]:
        """Return name, effect, key, and the text with its checksum."""
        return (*list_entry(request), *json_with_checksum(request_record(request)))

    @staticmethod
    def _reply_columns(request: Any, reply: Any) -> Checked:
        return json_with_checksum(reply_record(request, reply))

    def _costs(self, request: Any, reply: Any) -> list[Job]:
        """Return jobs that book the costs of a reply in its transaction, for a request that is ``paid``."""
        return []

    def _note_rows(self) -> None:
        """Gather the changes of a transcript since the last call."""

    def _delta(self) -> dict[str, Any]:
        """Return the changes of the snapshot since the last call."""
        return self._tracker.delta()

    # Writing

    def _hand_over(self) -> None:
        """Queue the gathered jobs behind earlier groups, without waiting."""
        if not self._jobs or self.problem:
            return
        before = self._sent[-1] if self._sent else None
        if before is None or not before.takes(self._jobs):
            group = Handover(self._jobs, self._write, None if before is None or before.arrived else before)
            group.future = self._database.submit(group, late=True)
            self._sent.append(group)
        self._jobs = []
        if len(self._sent) > SENT:
            self._sent = [*(one for one in self._sent[:-1] if not one.arrived), self._sent[-1]]

    def _write(self, c: SqlConnection, jobs: Sequence[Job]) -> None:
        """Run the jobs in the writer's thread, unless the turn has another owner by now."""
        self.fence.refuse(c)
        with conflicts(c, self._stale):
            for job in jobs:
                job(c)

    def _stale(self, error: Exception) -> StaleCopyError:
        return StaleCopyError(
            f"session {self.session.id} was changed from outside while turn {self._turn.turn_id} held it"
            f" ({str(error).splitlines()[0]}); what the turn did since is not stored"
        )

    async def _commit(self) -> None:
        """Wait until all handed-over and gathered jobs are durable."""
        self._hand_over()
        if not self._sent:
            return
        self._database.hurry()
        await self._database.wait_for(self._sent[-1].future)  # jobs are done in the order given
        sent, self._sent = self._sent, []
        try:
            for group in sent:
                group.future.result()
            self._moved = False
        except StoreError as error:
            self._take_back(sent)
            self._on_store_failure(error)
        except JournalError:
            self._disbelieve()
            raise

    def _disbelieve(self) -> None:
        """Drop the cached copies of the sessions: their changes are not stored."""
        for session in self.line:
            session.revision = UNREAD

    def _take_back(self, sent: Sequence[Handover]) -> None:
        """Queue the jobs of lost groups again, before later ones."""
        lost = [job for group in sent if group.future.exception() is not None for job in group.jobs]
        self._jobs = [*lost, *self._jobs]

    def _on_store_failure(self, error: StoreError) -> None:
        """Keep unwritten jobs for another attempt with the next group."""
        raise error

    def _intent(self, row: tuple[Any, ...]) -> Job:
        return EffectJob((*row, "in_flight", None, None, self._now(), None, ""))

    def _outcome(
        self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float, origin: Origin = ""
    ) -> Job:
        """Return the job that writes an answered request, with the reply's source if it was not performed."""
        kind: type = type(request)
        unknown = declaration_of(kind).doubtful and request.doubtful(reply)
        status, at = "unknown" if unknown else "done", self._now() - seconds
        took = None if origin else seconds
        begun = self._begun.get((exchange.seq, exchange.ordinal, place))
        row = begun or self._asked_row(exchange, place, request)
        return EffectJob((*row, status, *self._reply_columns(request, reply), at, took, origin))

    def _asked_row(self, exchange: Exchange, place: int, request: Any) -> tuple[Any, ...]:
        """Return the columns of a request that do not change with its reply."""
        kept = exchange.ordinal, place
        if self._recording is not None and self._recording.entries:
            kept = self._recording.where(*kept, request)
        where = (self._turn.turn_id, exchange.seq, *kept, exchange.state, type(request).__name__)
        return (*where, *self._request_columns(self.session, request))

    def _transition(self, step: Step, delta: dict[str, Any]) -> Job:
        turn_id, at = self._turn.turn_id, self._now()
        shared: Contents = {}
        if step.seq == 1:  # this move sets the turn's tools, prompt, and limits
            delta = deduplicate(delta, shared)
        values = (
            turn_id, step.seq, step.source, step.event, step.dest, step.row, step.exit,
            *(json_with_checksum(step.guards) if step.guards else _NONE),
            *(json_with_checksum(step.changes) if step.changes else _NONE), step.seconds, at,
            *json_with_checksum(shorten_changes(delta)),
        )  # fmt: skip
        moved = (step.seq, step.dest, at, step.exit, turn_id, step.seq - 1)

        def move(c: SqlConnection) -> None:
            must(
                c, "UPDATE turns SET seq = ?, state = ?, moved = ?, exit = ? WHERE id = ? AND seq = ?", moved,
                lambda: JournalError(f"turn {turn_id} is not where it was left; this process stops here"),
            )  # fmt: skip
            rows.write(c, shared)
            c.execute(_MOVE, values)

        return move

    def _end(self, closing: Closing, delta: Checked) -> Job:
        turn_id, session_id, at = self._turn.turn_id, self.session.id, self._now()
        shared: Contents = {}
        result = json_with_checksum(deduplicate(closing.result, shared, long=False, stays="attempts"))
        ended = (at, closing.exit, closing.outcome, *result, *delta, turn_id)

        def end(c: SqlConnection) -> None:
            rows.write(c, shared)
            c.execute(
                "UPDATE turns SET ended = ?, exit = ?, outcome = ?, result = ?, result_crc = ?, final = ?,"
                " final_crc = ?, owner = NULL WHERE id = ?",
                ended,
            )
            c.execute(
                "UPDATE sessions SET holder = NULL, owner = NULL, turns = turns + 1, revision = revision + 1,"
                " touched = ?, model = ?, exit = ? WHERE id = ?",
                (at, closing.model, closing.exit, session_id),
            )

        return end


class Handover:
    """Jobs written together, behind the group before them. A lost group fails all later ones, so that they
    can be written again in order. ``future``: its outcome."""

    future: Future[Any]

    def __init__(
        self,
        jobs: list[Job],
        write: Callable[[SqlConnection, Sequence[Job]], None],
        before: Handover | None,
    ) -> None:
        self.jobs, self._write, self._before = jobs, write, before
        self._begun = self._written = False
        self._lock = threading.Lock()

    def takes(self, jobs: Sequence[Job]) -> bool:
        """Append these jobs, if the writer has not begun yet."""
        with self._lock:
            if not self._begun:
                self.jobs += jobs
            return not self._begun

    def __call__(self, connection: SqlConnection) -> None:
        with self._lock:
            self._begun = True
        self._written = False
        if self._before is not None and self._before.lost:
            raise StoreError("the moves before it could not be written")
        self._write(connection, self.jobs)
        self._written = True

    @property
    def arrived(self) -> bool:
        """True if the group is durable."""
        return self.future.done() and self.future.exception() is None

    @property
    def lost(self) -> bool:
        """True if this group was refused or its transaction was rolled back; the next group checks it."""
        return not self._written or (self.future.done() and self.future.exception() is not None)


@dataclass(frozen=True, slots=True)
class EffectJob:
    """The job that writes a request, or replaces it with its answered form."""

    values: tuple[Any, ...]

    def __call__(self, connection: SqlConnection) -> None:
        connection.execute(_EFFECT, self.values)


# ----------------------------------------------------------------------------------------------------
# Points at which pending writes must be on disk. All other writes of a turn wait for the next of these, or
# for ``database.LATE`` seconds. Requests declare their own needs.


SAID = Flush(
    "what a person said meanwhile is taken up",
    "all",
    "a message that was taken is not lost with the process that took it",
)
STEP = Flush(
    "`step()` returns, or a debugger shows a move", "all", "a reader of the store finds what was reported"
)
LAST = Flush(
    "the last state of a turn begins",
    "all",
    "others learn of a turn only from its owner, and only what is stored",
)
SUSPENDED = Flush(
    "a turn is suspended", "all", "who answers finds what is asked, whatever becomes of the process"
)
END = Flush("a result is returned", "all", "`result.stored` is true only of what a crash cannot take back")
LET_GO = Flush("a turn that was stopped releases its session", "all", "it is resumed from where it stopped")
