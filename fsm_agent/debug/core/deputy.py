"""Carries out the orders of a debugger in another process, at the gate of a turn that runs here."""

from __future__ import annotations

import logging
import time
from typing import Any

from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.events import Event
from fsm_agent.debug.core.orders import carry_out
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.pause_point import Gate
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.owners import Owners

log = logging.getLogger(__name__)
SAID = "said"
"""Command of the rows that answer; they are taken from the start."""
TOLD = ("paused", "running", "waiting", "log", "ended", "left")
"""Events that go to the other process; moves it reads from the journal."""
LOOK_AFTER = 1.0
"""Seconds between two looks whether the debugger still lives: a turn must not wait for a dead one."""
KEPT = 3600.0
"""Seconds after which what was ordered and said is forgotten."""


class Deputy:
    """``attach`` stands at the gate with what it brings, ``detach`` leaves; everything else are orders."""

    def __init__(self, gate: Gate, database: Database) -> None:
        self._gate, self._database = gate, database
        self._owners = Owners(database.path.parent)
        self._controller: Controller | None = None
        self._debugger = ""
        self._looked = 0.0

    @property
    def attached(self) -> bool:
        """Is a debugger there? One whose process died is sent away."""
        if self._controller is not None and time.monotonic() - self._looked > LOOK_AFTER:
            self._looked = time.monotonic()
            if self._owners.alive(self._debugger) is None:
                self._detach()
        return self._controller is not None

    def obey(self, command: str, body: dict[str, Any]) -> None:
        try:
            if command == "attach":
                self._attach(body)
            elif command == "detach":
                self._detach()
            elif self._controller is not None:
                carry_out(self._controller, command, body)
                self._say("status", self._controller.status().to_dict())
        except ConfigError as error:
            self._say("refused", {"order": command, "why": str(error)})

    def _attach(self, body: dict[str, Any]) -> None:
        if self._controller is not None and self._debugger != body["owner"] and self._owners.alive(self._debugger) is not None:
            raise ConfigError("another debugger is attached to this turn already", self._gate.turn.turn_id, "one at a time")
        self._detach()
        controller = Controller(self._gate, paused=bool(body.get("pause")))
        controller.stand()
        controller.listeners.add(self._hear)
        carry_out(controller, "breakpoints", {"all": body.get("breakpoints", [])})
        self._controller, self._debugger, self._looked = controller, body["owner"], time.monotonic()
        before = time.time() - KEPT
        self._database.submit(lambda c: c.execute("DELETE FROM controls WHERE taken < ?", (before,)) and None)
        self._say("status", controller.status().to_dict())

    def _detach(self) -> None:
        if self._controller is not None:
            self._controller.go_away()
            self._controller = None

    def _hear(self, event: Event) -> None:
        if event.kind in TOLD and self._controller is not None:
            self._say(event.kind, dict(event.data) | {"status": self._controller.status().to_dict()})

    def _say(self, kind: str, data: dict[str, Any]) -> None:
        values = (self._gate.turn.turn_id, SAID, dumps({"kind": kind, "data": data}), time.time(), time.time())
        self._database.submit(
            lambda c: c.execute("INSERT INTO controls (turn, command, body, at, taken) VALUES (?, ?, ?, ?, ?)", values) and None
        )
