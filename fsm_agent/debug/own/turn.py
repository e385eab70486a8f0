"""``TableTurn``: a turn of the user's own table that is stored move by move and has a gate, as the turns of an ``Agent`` do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from fsm_agent.debug.core.subject import SUBJECTS, Subject
from fsm_agent.debug.own.log import Origin, TableLog
from fsm_agent.debug.own.shape import Shape
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.fsm.pause_point import Gate
from fsm_agent.fsm.runner import RunnableTurn, Runner
from fsm_agent.fsm.table import Counter
from fsm_agent.runtime.turn_inbox import SignalBox
from fsm_agent.sessions.remote_commands import controls_of
from fsm_agent.sessions.store import Store
from fsm_agent.support.threads import LOOP


class TableTurn:
    """The turn of ``runner``, which must not have moved yet. While it runs, a debugger in this process or another can watch it,
    stop it and step it; ``store`` is where: ``store_for(folder)``, a folder for such turns alone. ``asked`` names it in lists.

    ``result`` is the exit reason, ``None`` until the turn has ended. A turn may have ``interrupt(message)`` and ``steer(text)``
    for what people say to it while it runs, and ``outcome`` (completed, failed, partial, interrupted) for how well it ended.
    """

    def __init__(self, runner: Runner, store: Store, asked: str = "", origin: Origin | None = None) -> None:
        turn, table = runner.turn, runner.machine.table
        self.result: str | None = None
        self.gate = Gate(_Seen(turn, table.counters), _Signals(turn), controls_of(store.database))
        SUBJECTS[self.gate] = Subject(table, runner.states)
        self._turn = turn
        shape = Shape(table, type(turn))
        self._log = TableLog(store, shape, turn, runner.journal, asked or f"{table.name} {turn.turn_id}", origin)
        self._exit = ""
        self._runner = Runner(
            turn, runner.machine, runner.states, self.gate.through(runner.perform), self._log, self._noted(runner)
        )
        self._running = False

    @property
    def id(self) -> str:
        return self._turn.turn_id

    async def step(self) -> Step | None:
        """Run the current state to its end and make one move. ``None`` when the turn has ended."""
        while True:
            happened = await self.step_into()
            if not isinstance(happened, Exchange):
                return happened

    async def step_into(self) -> Exchange | Step | None:
        """One request and its reply, or the move that ends the state; ``None`` when the turn has ended."""
        if self.result is not None:
            return None
        try:
            if not self._running:
                await self._log.enter()
                self._running = True
                self.gate.opened()
            await self.gate.passed()
            happened = await self._runner.step_into()
            if happened is None:
                await self._log.ended(self._exit)
                self.result = self._exit
        except BaseException:
            if self._running:
                self._running = False
                self.gate.closed(ended=False)
            raise
        if happened is not None:
            self.gate.happened(happened)
        else:
            self.gate.closed(ended=True)
        return happened

    async def __aiter__(self) -> AsyncIterator[Step]:
        while (step := await self.step()) is not None:
            yield step

    async def arun(self) -> str:
        """Run to the end; the exit reason."""
        while await self.step() is not None:
            pass
        assert self.result is not None
        return self.result

    def run(self) -> str:
        """Run to the end, synchronously; also inside a running event loop."""
        return LOOP.run(self.arun())

    def _noted(self, runner: Runner) -> Callable[[Step], None]:
        def note(step: Step) -> None:
            self._exit = step.exit or self._exit
            runner.on_move(step)

        return note


class _Seen:
    """What the gate shows of the turn."""

    def __init__(self, turn: RunnableTurn, counters: tuple[Counter, ...]) -> None:
        self.turn_id, self._turn = turn.turn_id, turn
        self._names = [counter.name for counter in counters]

    @property
    def state(self) -> str:
        return self._turn.state

    @property
    def seq(self) -> int:
        return self._turn.seq

    def counters(self) -> dict[str, int]:
        return {name: self._turn.count(name) for name in self._names}


class _Signals(SignalBox):
    """Says to the turn what people say."""

    def __init__(self, turn: RunnableTurn) -> None:
        super().__init__()
        self._turn = turn

    def interrupt(self, message: str | None = None) -> None:
        hear = getattr(self._turn, "interrupt", None)
        if not callable(hear):
            raise ConfigError(f"a {type(self._turn).__name__} cannot be interrupted", None, "a method interrupt(message)")
        hear(message)
        super().interrupt(message)

    def steer(self, text: str) -> None:
        hear = getattr(self._turn, "steer", None)
        if not callable(hear):
            raise ConfigError(f"a {type(self._turn).__name__} cannot be told anything", None, "a method steer(text)")
        hear(text)
