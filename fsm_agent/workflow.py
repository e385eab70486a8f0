"""``Workflow``: the engine for a table of your own. Its turns are stored move by move, survive kill -9, and
can be stepped, resumed, forked, and debugged, like the turns of an ``Agent``.

You write a table, a pure function for each of its states, a dataclass for the values of a turn
(``BaseTurn``), and handlers for the requests of the states::

    parcels = Workflow(TABLE, {"Pack": pack, "Drive": drive, "Done": done}, Parcel, {LookOut: look_out})
    result = parcels.start(Parcel("a vase")).run()
    print(result.exit, result.turn.sky)

``examples/review_loop.py`` and ``examples/order.py`` are complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_args

from fsm_agent.errors import ConfigError, TurnSuspended, expect, expect_callable, expect_name, near
from fsm_agent.fsm import values
from fsm_agent.fsm.base_turn import BaseTurn, OutcomeName, expect_numbers, with_counters
from fsm_agent.fsm.journal import Step, refuse_unstorable
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.pause_point import PausePoint, TurnInbox, TurnKind
from fsm_agent.fsm.properties import Watch
from fsm_agent.fsm.runner import CRASHED, Perform, Pipeline, State
from fsm_agent.fsm.table import Table
from fsm_agent.request import NotYet
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Begun, Claim, NewTurn, Store, store_for
from fsm_agent.sessions.store.journal import Closing, TurnLog
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rewind import Position
from fsm_agent.sessions.store.rows import first_user_words
from fsm_agent.sessions.turn import DurableTurn, DurableTurns, Enter, EnterBehind, TurnEnding
from fsm_agent.settings import Settings
from fsm_agent.support.files import home_of

# ----------------------------------------------------------------------------------------------------
# A state that runs other tables: it requests a turn of each, waits for all, and reports how they ended. (Why:
# decision 101.)


@dataclass(frozen=True)
class TurnEnded:
    """The end of an inner turn: its exit reason, and its stored values. A person who answers by hand may omit
    ``turn``: its values are then those of its start."""

    exit: str
    turn: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTurn:
    """Run a turn of another table to its end, or continue it. ``begins``: its initial values as stored. The
    id identifies it: ``3.0@t-1`` is the first branch that ``t-1`` requested after three moves."""

    turn_id: str
    table: str
    begins: dict[str, Any]
    reply: ClassVar[type] = TurnEnded


class TurnsOfTable(Protocol):
    """The part of a ``Workflow`` that describes its turns."""

    kind: TurnKind
    turn_type: Any


class Nested:
    """A state that runs other tables (``Table.inner``).

    ``flows``: a ``Workflow`` for each of them, in order; their turns are stored in the home of the outer one.
    ``begin`` makes the inner turns: one per table, in order, or of the only table as many as the limit
    allows. When all have ended, ``join`` copies what it needs from them (``inner.exit``, and their other
    values) to the outer turn. The event is the exit; see ``Table.joined``. Both are pure, as states are:
    after a crash they are called again."""

    def __init__(
        self,
        *flows: TurnsOfTable,
        begin: Callable[[Any], Sequence[BaseTurn]],
        join: Callable[[Any, list[Any]], None] = lambda turn, ended: None,
    ) -> None:
        if other := [flow for flow in flows if not isinstance(getattr(flow, "kind", None), TurnKind)]:
            raise ConfigError("Nested runs workflows", other[0], "a Workflow for each inner table")
        expect_callable("begin of Nested", begin, "a function that returns the inner turns of the outer one")
        expect_callable("join of Nested", join, "a function of the outer turn and the inner ones")
        self.flows, self.begin, self.join = flows, begin, join
        self.__wrapped__ = begin  # editors show its source
        self.table: Table | None = None

    def of(self, table: Table, state: str) -> Self:
        """Return this state bound to ``table``. Raises ``ConfigError`` if that runs other tables here."""
        wanted = table.inner[state].tables
        if tuple(flow.kind.table for flow in self.flows) != wanted:
            given = ", ".join(flow.kind.table.name for flow in self.flows) or "none"
            raise ConfigError(
                f"{state} of {table.name} runs other tables", given, ", ".join(one.name for one in wanted)
            )
        bound = type(self)(*self.flows, begin=self.begin, join=self.join)
        bound.table = table
        return bound

    def __call__(self, turn: BaseTurn) -> Generator[list[RunTurn], list[TurnEnded], str]:
        assert self.table is not None
        begun = list(self.begin(turn))
        flows = self._flows(turn, begun)
        asked: list[RunTurn] = []
        for place, (inner, flow) in enumerate(zip(begun, flows, strict=True)):
            inner.turn_id = f"{turn.seq}.{place}@{turn.turn_id}"
            asked.append(RunTurn(inner.turn_id, flow.kind.table.name, values.to_json(inner)))
        replies = (yield asked) if asked else []
        ended = [
            values.from_json(type(inner), {**one.begins, **reply.turn, "exit": reply.exit})
            for inner, one, reply in zip(begun, asked, replies, strict=True)
        ]
        self.join(turn, ended)
        return self.table.joined(turn.state, [reply.exit for reply in replies])

    def _flows(self, turn: BaseTurn, begun: Sequence[BaseTurn]) -> Sequence[TurnsOfTable]:
        """Return the workflow of each turn. Raises ``ConfigError`` for turns that are not in the table."""
        assert self.table is not None
        most = self.table.inner[turn.state].most
        flows = self.flows * len(begun) if most else self.flows
        wanted = [flow.turn_type.__name__ for flow in flows]
        if (given := [type(one).__name__ for one in begun]) != wanted:
            raise ConfigError(f"{turn.state} began other turns", ", ".join(given), ", ".join(wanted))
        if most and len(begun) > turn.limit(most):
            raise ConfigError(
                f"{turn.state} began too many turns", len(begun), f"{turn.limit(most)} ({most})"
            )
        return flows


# ----------------------------------------------------------------------------------------------------
# ``Workflow``.


T = TypeVar("T", bound=BaseTurn)
OTHERS = ("history", "rows", "meter", "session_id", "parent_session_id", "supplied_history")
"""Snapshot fields of an agent's turn, reserved like the names of a table's counters."""
RELIED_ON = ("count", "limit", "spend", "reset", "counters", "put_back")
"""Methods used by guards and rows: the proofs rely on their meaning."""


@dataclass(frozen=True, slots=True)
class WorkflowResult(Generic[T]):
    """The end of a turn: the exit reason of its table, the outcome (``completed``, ``failed``, ``partial``,
    ``interrupted``), the turn with all its values, and its moves. If its end could not be stored, ``stored``
    is false and ``problem`` gives the reason."""

    turn_id: str
    exit: str
    outcome: OutcomeName | None
    turn: T
    steps: tuple[Step, ...]
    stored: bool = True
    problem: str = ""


class Workflow(Generic[T]):
    """All turns of one table in one home.

    ``states``: a pure generator function for each state of ``table``, and a ``Nested`` for one that runs
    other tables; the final one needs none. ``turn``: the dataclass of its turns. ``perform``: the handler of
    requests, one coroutine function for all of them or one per request class. ``begin``: makes a turn from a
    person's words, in the debugger for instance; by default ``turn(words)``. ``home``: the folder of the
    store, by default that of agents. ``over``: the state at which the debugger's *step over* stops, by
    default the next one. ``watch``: the reaction to a turn that breaks a property of the table: none
    (``off``), a line in the log (``warn``), or the move is not made and the turn ends by its ``crashed`` row
    (``stop``). Raises ``ConfigError`` for arguments that do not fit together, ``TableError`` for a table that
    is not proved.

    A bug in a state or in ``perform`` takes the state's row ``crashed``; a state without one raises
    ``UndeclaredEvent`` from the bug, and the turn can be resumed from the same position."""

    def __init__(
        self,
        table: Table,
        states: Mapping[str, State],
        turn: type[T],
        perform: Perform | Mapping[type, Callable[[Any], Awaitable[Any]]],
        *,
        begin: Callable[[str], T] | None = None,
        home: str | os.PathLike[str] | None = None,
        over: str | None = None,
        watch: Watch = "warn",
    ) -> None:
        states = _check_states(table, states)
        self.home = home_of(home, os.environ)
        flows = [flow for state in states.values() if isinstance(state, Nested) for flow in state.flows]
        self._inner: dict[str, Workflow[Any]] = {
            flow.kind.table.name: flow.in_home(self.home) for flow in flows if isinstance(flow, Workflow)
        }
        kinds = {name: one for flow in flows for name, one in _kinds(flow.kind)}
        self.kind: TurnKind = TurnKind(table, states, over, inner=kinds)
        self.turn_type = _check_type(turn, {*OTHERS, *self.kind.counters}, table)
        self.begin: Callable[[str], T] = turn if begin is None else begin
        expect_callable("begin of Workflow", self.begin, "a function that returns a turn for a text, or None")
        self._perform = _performing(perform)
        self._machine = Machine(table)
        self.watch = _check_watch(table, watch)

    def in_home(self, home: str | os.PathLike[str]) -> Workflow[T]:
        """Return the same workflow with its turns in another folder."""
        kind = self.kind
        return Workflow(
            kind.table,
            kind.states,
            self.turn_type,
            self._perform,
            begin=self.begin,
            home=home,
            over=kind.over,
            watch=self.watch,
        )

    @cached_property
    def store(self) -> Store:
        """The store of the turns: in the home, or in the database that the environment names."""
        return store_for(self.home, "full", Settings().store.database)

    @cached_property
    def _turns(self) -> DurableTurns[WorkflowResult[T]]:
        return DurableTurns(self.kind, self._machine, self.store, self.watch)

    @property
    def journal(self) -> Turns:
        """The turns of this home: their moves, requests, snapshots and results."""
        return self._turns.journal

    def start(self, turn: T, session: str | None = None) -> DurableTurn[WorkflowResult[T]]:
        """Make a turn that has not moved yet. Turns of one ``session`` follow each other; by default each has
        its own. Raises ``ConfigError`` for a turn that cannot be stored, and at its first step for an
        existing ``turn_id``."""
        self._refuse_others(turn)
        values.to_json(turn)
        held = self.store.newest(session or turn.turn_id)
        if held.rows:
            raise ConfigError(
                "the session is a conversation", held.id, "one for turns of this table, or none"
            )
        return self._start(turn, held)

    def _start(self, turn: T, held: Session, parent: str | None = None) -> DurableTurn[WorkflowResult[T]]:
        turn.enter(self.kind.table)
        held.source = held.source or self.kind.table.name
        log = TurnLog(self.store.database, held, turn)
        table = self.kind.table
        new = NewTurn(first_user_words(_title_of(turn)), table.name, table.digest, parent=parent)
        return self._turn(turn, log, lambda: self.store.begin(held, turn, log.open, new))

    def resume(
        self, session_or_turn_id: str, *, claim: Claim | None = None
    ) -> DurableTurn[WorkflowResult[T]]:
        """Resume an unfinished turn where its process ended: by its id or a prefix, or by its session.
        Requests that were in flight then are repeated unless they are declared unsafe
        (``fsm_agent.request``). ``claim``: the result of ``store.claim`` for the turn; then its owner is not
        checked. Raises ``ConfigError`` if there is nothing to resume, ``SessionBusy`` while another process
        runs it."""
        return self._turns.resume(session_or_turn_id, claim, self._continue)

    def fork(
        self, turn_id: str, at: int, edit: Mapping[str, Mapping[str, Any]] | None = None
    ) -> DurableTurn[WorkflowResult[T]]:
        """Make a turn, in a session of its own, that begins where ``turn_id`` was after ``at`` moves.
        ``edit``: ``counters`` and ``fields`` by name, as JSON values. The old turn stays as it is. Raises
        ``ConfigError``."""

        def edited(position: Position) -> Position:
            _edit(position.snapshot, edit or {})
            position.recording = position.recording.taken_over()
            return position

        return self._turns.fork(turn_id, at, edited, self._continue)

    def _continue(
        self, position: Position, session: Session, enter: EnterBehind
    ) -> DurableTurn[WorkflowResult[T]]:
        turn = self._restore(position)
        log = TurnLog(self.store.database, session, turn)

        async def reenter() -> Begun:
            begun = await enter(log.fence)
            log.open()
            if begun.recording is None or not position.turn.imported:
                return begun
            return dataclasses.replace(begun, recording=begun.recording.distrust())

        return self._turn(turn, log, reenter, self._turns.steps_before(position, turn.seq))

    def _turn(
        self, turn: T, log: TurnLog, enter: Enter, steps: Sequence[Step] = ()
    ) -> DurableTurn[WorkflowResult[T]]:
        inner: list[PausePoint] = []
        gate = PausePoint(turn, self.kind, _Inbox(turn, inner), self.store.pause_points, inner)
        session = log.session

        def inner_turn(request: RunTurn) -> Awaitable[TurnEnded | NotYet]:
            return self._inner[request.table]._run_to_its_end(request, session, gate)

        def handler_of(kind: type) -> Perform:
            return inner_turn if kind is RunTurn and self._inner else self._perform

        pipeline = Pipeline(turn, handler_of, (gate.layer,))
        gate.joins(pipeline)
        return self._turns.turn(turn, log, gate, pipeline, enter, _ending(turn), steps=steps)

    async def _run_to_its_end(self, request: RunTurn, outer: Session, gate: PausePoint) -> TurnEnded | NotYet:
        """Run the turn of this table that another table's state requests, unless it has ended already: start
        it or resume it. If it is suspended, so is the outer turn."""
        known = next(iter(self.journal.recent(1, request.turn_id)), None)
        if known is not None and known.ended is not None:
            return TurnEnded(known.exit or "", self.journal.snapshot(known.id))
        if known is not None:
            turn = self.resume(known.id)
        else:
            held = self.store.session(request.turn_id)
            held.kind, held.parent = "child", outer.id
            turn = self._start(values.from_json(self.turn_type, request.begins), held, gate.turn.turn_id)
        try:
            with gate.around(turn.gate):
                result = await turn.arun()
        except TurnSuspended:
            return NotYet()
        return TurnEnded(result.exit, values.to_json(result.turn))

    def _restore(self, position: Position) -> T:
        """Restore the turn at a position. Limits of an imported turn do not exceed those of a new one. Raises
        ``ConfigError`` if it cannot be restored."""
        table, info = self.kind.table, position.turn
        known = {row.id: row for row in table.rows}
        if position.row is not None and position.row not in known:
            raise ConfigError(
                f"turn {info.id} was moved by another version of the table", position.row, "a row of this one"
            )
        last = None if position.row is None else known[position.row]
        try:
            turn: T = values.from_json(self.turn_type, position.snapshot, last_transition=last)
            values.to_json(turn)
        except (ConfigError, *values.UNREADABLE) as error:
            raise ConfigError(
                f"a {self.turn_type.__name__} cannot be made again ({error})", info.id, "fields as they were"
            ) from None
        with_counters(turn.counts, turn.counts)  # a counter below 0 would enlarge its budget
        if info.imported:
            usual = self.turn_type.usual_limits
            turn.limits = {
                name: min(most, usual[name]) for name, most in turn.limits.items() if name in usual
            }
        turn.enter(table)
        return turn

    def _refuse_others(self, turn: T) -> None:
        if type(turn) is not self.turn_type:
            raise ConfigError("the turn is of another class", type(turn).__name__, self.turn_type.__name__)
        expect_name("turn_id", turn.turn_id, "a text")
        for name in ("counts", "limits"):
            expect_numbers(f"{type(turn).__name__}.{name}", getattr(turn, name))
        if not turn.turn_id:
            raise ConfigError("turn_id is empty", turn.turn_id, "a text that names the turn, or none")
        if turn.seq:
            raise ConfigError(
                "the turn has moved already",
                turn.turn_id,
                "a new one; resume(id) continues one that is stored",
            )


class _Inbox(TurnInbox):
    """Delivers what people say to the turn and to those of its ``inner`` turns that can be interrupted."""

    def __init__(self, turn: BaseTurn, inner: Sequence[PausePoint]) -> None:
        super().__init__()
        self._turn, self._inner = turn, inner

    def interrupt(self, message: str | None = None) -> None:
        self._subscriber("interrupt", "interrupted", "message")(message)
        super().interrupt(message)
        for one in tuple(self._inner):
            with contextlib.suppress(ConfigError):  # it cannot be interrupted, and runs to its end
                one.signals.interrupt(message)

    def steer(self, text: str) -> None:
        self._subscriber("steer", "told anything", "text")(text)

    def _subscriber(self, method: str, what: str, argument: str) -> Callable[[Any], Any]:
        hear = getattr(self._turn, method, None)
        if not callable(hear):
            raise ConfigError(
                f"a {type(self._turn).__name__} cannot be {what}", None, f"a method {method}({argument})"
            )
        return hear  # type: ignore[no-any-return]


def _ending(turn: T) -> TurnEnding[WorkflowResult[T]]:
    async def result(steps: list[Step]) -> WorkflowResult[T]:
        return WorkflowResult(turn.turn_id, turn.exit or "", turn.outcome, turn, tuple(steps))

    def closing(ended: WorkflowResult[T]) -> Closing:
        fields = {"turn_exit_reason": ended.exit, "error": turn.bug or None, "moves": turn.seq}
        return Closing(ended.exit, ended.outcome, fields)

    def noted(ended: WorkflowResult[T], stored: bool, problem: str) -> WorkflowResult[T]:
        return dataclasses.replace(ended, stored=stored, problem=problem)

    return TurnEnding(result, closing, noted)


def _check_states(table: Table, states: Mapping[str, State]) -> dict[str, State]:
    expect("table", table, Table, "a Table of fsm_agent.fsm.table")
    expect("states", states, Mapping, "a mapping of a function for each state")
    states = {table.final: _nothing_more, **states}
    if unknown := [name for name in states if name not in table.states]:
        raise ConfigError(
            f"table {table.name} has no state of this name", unknown[0], near(unknown[0], table.states)
        )
    if missing := [name for name in table.states if name not in states]:
        raise ConfigError(
            f"table {table.name} has a state without a function",
            missing[0],
            "one for each of " + ", ".join(name for name in table.states if name != table.final),
        )
    for name in table.states:
        if _is_async(states[name]):
            raise ConfigError(
                f"{name} of {table.name} cannot be async",
                getattr(states[name], "__name__", name),
                "a generator function, which asks by yield for what is awaited elsewhere",
            )
    for name in table.states:
        if isinstance(states[name], Nested) != (name in table.inner) or not callable(states[name]):
            allowed = "a Nested" if name in table.inner else "a function, or inner={...} of the table"
            raise ConfigError(f"{name} of {table.name} cannot be this", type(states[name]).__name__, allowed)
    nested = {name: one.of(table, name) for name, one in states.items() if isinstance(one, Nested)}
    return {name: nested.get(name) or states[name] for name in table.states}


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    called = function.__call__ if callable(function) and not inspect.isroutine(function) else function
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called)


def _kinds(kind: TurnKind) -> Iterator[tuple[str, TurnKind]]:
    yield kind.table.name, kind
    yield from kind.inner.items()


def _check_watch(table: Table, watch: Watch) -> Watch:
    if watch not in get_args(Watch):
        raise ConfigError("properties cannot be watched so", watch, ", ".join(get_args(Watch)))
    without = [name for name in table.states if (name, CRASHED) not in table.by_event and name != table.final]
    if watch == "stop" and without:
        raise ConfigError(
            f"a turn of {table.name} cannot be stopped in {without[0]}, which has no line for {CRASHED}",
            watch,
            f'"warn", or Table(macros=(("{CRASHED}", ...),))',
        )
    return watch


def _nothing_more(turn: Any) -> Generator[Any, Any, None]:
    """Do nothing: a final state without work at the end."""
    yield from ()


def _check_type(turn: type[T], others: Collection[str], table: Table) -> type[T]:
    if not (isinstance(turn, type) and issubclass(turn, BaseTurn) and dataclasses.is_dataclass(turn)):
        raise ConfigError("this is not a class of turns", turn, "a dataclass that inherits from BaseTurn")
    if "__dataclass_params__" not in vars(turn) and inspect.get_annotations(turn):
        raise ConfigError(
            f"{turn.__name__} is not a dataclass itself, so its fields are not stored",
            ", ".join(inspect.get_annotations(turn)),
            f"@dataclass before class {turn.__name__}",
        )
    if changed := [name for name in RELIED_ON if getattr(turn, name) is not getattr(BaseTurn, name)]:
        raise ConfigError(
            f"{turn.__name__} changes what the proofs of its table rely on",
            changed[0],
            "methods of its own, none of " + ", ".join(RELIED_ON),
        )
    expect_numbers(f"{turn.__name__}.usual_limits", turn.usual_limits)
    expect(f"{turn.__name__}.outcomes", turn.outcomes, Mapping, "{exit: outcome}")
    exits = list(dict.fromkeys(row.exit for row in table.rows if row.exit))
    for name, outcome in turn.outcomes.items():
        if name not in exits:
            raise ConfigError(
                f"{turn.__name__}.outcomes has an exit that table {table.name} has not",
                name,
                near(name, exits),
            )
        if outcome not in get_args(OutcomeName):
            raise ConfigError(
                f"{turn.__name__}.outcomes has no such outcome for {name}",
                outcome,
                ", ".join(get_args(OutcomeName)),
            )
    try:
        stored = [one.name for one in values.fields_of(turn)]
    except values.NoCodec as error:
        raise ConfigError(
            f"{turn.__name__} cannot be stored",
            str(error),
            f'{values.STORABLE}; or metadata={{"stored": False}} and a default',
        ) from None
    if taken := [name for name in stored if name in others]:
        raise ConfigError(
            f"{turn.__name__} has a field of a name that is taken",
            taken[0],
            "none of " + ", ".join(sorted(others)),
        )
    return turn


def _performing(perform: Perform | Mapping[type, Callable[[Any], Awaitable[Any]]]) -> Perform:
    """Return one handler of all requests. Raises ``ConfigError`` for requests that cannot be stored."""
    if not isinstance(perform, Mapping):
        return perform if _is_async(perform) else _await_result(perform)
    for kind in perform:
        if not isinstance(kind, type):
            raise ConfigError(
                "what performs requests is listed by their class", kind, "{Class: async def, …}"
            )
        refuse_unstorable(kind)
    handlers = {kind: one if _is_async(one) else _await_result(one) for kind, one in perform.items()}

    async def handled(request: Any) -> Any:
        if (handler := handlers.get(type(request))) is None:
            known = ", ".join(kind.__name__ for kind in handlers)
            raise ConfigError("no handler performs this request", type(request).__name__, known)
        return await handler(request)

    return handled


def _await_result(perform: Any) -> Perform:
    """Wrap a function that may return an awaitable, or be a mistake."""
    if not callable(perform):
        allowed = "async def perform(request), or one for each class of requests"
        raise ConfigError("requests cannot be performed by this", perform, allowed)

    async def awaited(request: Any) -> Any:
        reply = perform(request)
        if not inspect.isawaitable(reply):
            raise ConfigError(
                f"what performs {type(request).__name__} is not async",
                f"{type(reply).__name__} {reply!r}",
                f"async def {getattr(perform, '__name__', 'perform')}(request)",
            )
        return await reply

    return awaited


def _edit(snapshot: dict[str, Any], edit: Mapping[str, Mapping[str, Any]]) -> None:
    """Apply a person's changes to a snapshot. Raises ``ConfigError``."""
    expect("edit", edit, Mapping, "a mapping with counters or fields")
    fixed = {"turn_id", "state", "seq", "counts", "history", "rows"}
    for name, changes in edit.items():
        if name not in ("counters", "fields") or not isinstance(changes, Mapping):
            raise ConfigError(
                "a turn of this table cannot be edited so", name, "counters, fields: names and values"
            )
        if name == "counters":
            snapshot["counts"] = with_counters(snapshot["counts"], changes)
            continue
        for key, value in changes.items():
            if key not in snapshot or key in fixed:
                raise ConfigError("it has no such field", key, ", ".join(sorted(snapshot.keys() - fixed)))
            snapshot[key] = value


def _title_of(turn: BaseTurn) -> str:
    """Return the words that name a turn in lists: the text in the first field that it declares."""
    engines = {base.name for base in dataclasses.fields(BaseTurn)}
    first = next((getattr(turn, one.name) for one in dataclasses.fields(turn) if one.name not in engines), "")
    words = first if isinstance(first, list | tuple) else [first]
    return " ".join(one for one in words if isinstance(one, str)) or turn.turn_id
