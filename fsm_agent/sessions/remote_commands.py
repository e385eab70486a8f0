"""What other processes have to say to turns that run here: rows of the table ``controls``, and that a turn
is theirs now; read a few times a second.

One thread a home, only while turns run, looks for rows that no process took yet; the turns themselves never
look. A row that attaches a debugger attaches a ``RemoteDebugServer`` to the turn's gate, which carries out
the commands of the following rows."""

from __future__ import annotations

import importlib
import json
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.fence import Fences

if TYPE_CHECKING:
    from fsm_agent.fsm.pause_point import PausePoint
    from fsm_agent.sessions.store.database import Database
    from fsm_agent.sessions.store.fence import Owners

log = logging.getLogger(__name__)

POLL, ATTACHED_POLL = 0.25, 0.02
"""Seconds between two looks, without and with a debugger in another process."""
TOLD_POLL = 5.0
"""The same where the database says when something came."""
IDLE = 2.0
"""Seconds without a running turn after which the thread ends."""
_OPEN = "SELECT id, turn, command, body FROM controls WHERE taken IS NULL ORDER BY id"


class Obeys(Protocol):
    """Who carries out commands at a gate for a debugger elsewhere."""

    @property
    def attached(self) -> bool:
        """Say whether a debugger has taken hold of the turn."""
        ...

    def obey(self, name: str, body: dict[str, Any]) -> None:
        """Carry out the command of that name; ``body`` is JSON."""
        ...


_TAKE = (
    "UPDATE controls SET taken = ? WHERE id = ? AND taken IS NULL AND EXISTS (SELECT 1 FROM turns WHERE id ="
    " controls.turn AND epoch = ?)"
)
"""Only for its owner: another process that ran the turn before must not hear what is said to it now."""


class Home(Protocol):
    """Whose commands are read."""

    fences: Fences

    @property
    def database(self) -> Database:
        """Return the database in which commands to turns are left."""
        ...

    @property
    def owners(self) -> Owners:
        """Return who knows which processes live."""
        ...


class CommandPoller:
    """The turns of one home that run in this process, and the commands that come for them."""

    def __init__(self, home: Home) -> None:
        self._home = weakref.ref(home)  # the thread must not keep it open
        self._lock = threading.Lock()
        self._gates: weakref.WeakValueDictionary[str, PausePoint] = weakref.WeakValueDictionary()
        self._servers: dict[str, tuple[PausePoint, Obeys]] = {}
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def opened(self, gate: PausePoint) -> None:
        """Look for commands to this turn from now on."""
        with self._lock:
            self._gates[gate.turn.turn_id] = gate
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_on, daemon=True, name="fsm-agent-controls")
                self._thread.start()

    def closed(self, gate: PausePoint) -> None:
        with self._lock:
            if self._gates.get(gate.turn.turn_id) is gate:  # and not that of who took the turn over
                del self._gates[gate.turn.turn_id]

    def running(self, turn_id: str) -> PausePoint | None:
        """The gate of a turn that this process runs."""
        with self._lock:
            return self._gates.get(turn_id)

    def _look_on(self) -> None:
        idle_since = time.monotonic()
        while True:
            try:
                self._look()
            except StoreError as error:
                log.warning("the commands of debuggers cannot be read: %s", error)
                time.sleep(IDLE)
            with self._lock:
                if self._gates:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > IDLE:
                    self._thread = None
                    self._servers.clear()
                    return
                attached = any(server.attached for _, server in self._servers.values())
            if self._wake.wait(self._pause(attached)):
                self._wake.clear()

    def _pause(self, attached: bool) -> float:
        """Seconds until the next look, unless something is heard of before."""
        home = self._home()
        if home is None or not home.database.listen(self._on_command):
            return ATTACHED_POLL if attached else POLL
        return TOLD_POLL

    def _on_command(self, table: str) -> None:
        self._wake.set()

    def _look(self) -> None:
        if (home := self._home()) is None or (database := home.database).closed:
            return
        with database.reading() as c:
            home.fences.look(c)
            rows = c.execute(_OPEN).fetchall()
        with self._lock:
            mine = [(gate, row) for row in rows if (gate := self._gates.get(row[1])) is not None]
        if not mine:
            return

        def take(c: SqlConnection) -> list[bool]:
            of = [(time.time(), number, home.fences.get(turn).epoch) for _, (number, turn, _, _) in mine]
            return [c.execute(_TAKE, one).rowcount == 1 for one in of]

        for (gate, (_, _, command, body)), taken in zip(mine, database.write(take), strict=True):
            if not taken:
                continue
            try:
                self._server(gate, home).obey(command, json.loads(body))
            except Exception:  # one bad command must not end the thread that looks for all of them
                log.exception("command %s of turn %s could not be carried out", command, gate.turn.turn_id)

    def _server(self, gate: PausePoint, home: Home) -> Obeys:
        known = self._servers.get(gate.turn.turn_id)
        if known is not None and known[0] is gate:
            return known[1]
        # by name, and only here: the debugger is built on turns, not turns on the debugger
        made = importlib.import_module("fsm_agent.debug.core.remote").RemoteDebugServer
        server: Obeys = made(gate, home.database, home.owners)
        self._servers[gate.turn.turn_id] = gate, server
        return server
