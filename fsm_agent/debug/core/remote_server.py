"""Carries out the commands of a debugger in another process, at the gate of a turn that runs here."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from fsm_agent.debug.core.arguments import Arguments, objects, text
from fsm_agent.debug.core.breakpoints import Breakpoint
from fsm_agent.debug.core.commands import Command, InterruptTurn, SteerTurn, read_command
from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.events import DebugEvent
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.pause_point import PausePoint
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.owners import Owners

log = logging.getLogger(__name__)
SAID = "said"
"""Command of the rows that answer; they are taken from the start."""
Told = Literal["paused", "running", "waiting", "log", "ended", "left"]
"""Events that go to the other process; moves it reads from the journal."""
Said = Literal["status", "refused"] | Told
"""What a row that answers says."""
LOOK_AFTER = 1.0
"""Seconds between two looks whether the debugger still lives: a turn must not wait for a dead one."""
KEPT = 3600.0
"""Seconds after which what was ordered and said is forgotten."""


@dataclass(frozen=True, slots=True)
class AttachDebugger:
    """Stand at the gate for the process ``owner``, with these breakpoints; ``pause``: stop the turn at
    once."""

    name: ClassVar[str] = "attach"
    owner: str
    pause: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()

    @classmethod
    def of(cls, body: Arguments) -> AttachDebugger:
        """From JSON. Raises ``ConfigError``."""
        breakpoints = tuple(Breakpoint.of(one) for one in objects(body, "breakpoints"))
        return cls(text(body, "owner"), bool(body.get("pause")), breakpoints)


@dataclass(frozen=True, slots=True)
class DetachDebugger:
    """Leave the gate."""

    name: ClassVar[str] = "detach"


class RemoteDebugServer:
    """Stands at the gate of one turn, as long as a debugger in another process is attached."""

    def __init__(self, gate: PausePoint, database: Database, owners: Owners) -> None:
        self._gate, self._database = gate, database
        self._owners = owners
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

    def obey(self, name: str, body: dict[str, Any]) -> None:
        """Carry out what a row of the table ``controls`` says; one that cannot be carried out is answered
        with why."""
        try:
            match _read(name, body):
                case AttachDebugger() as attach:
                    self._attach(attach)
                case DetachDebugger():
                    self._detach()
                case InterruptTurn(message) if self._controller is None:
                    self._gate.signals.interrupt(message)
                case SteerTurn(words) if self._controller is None:
                    self._gate.signals.steer(words)
                case command if self._controller is not None:
                    self._controller.order(command)
                    self._say("status", self._controller.status().to_dict())
        except ConfigError as error:
            self._say("refused", {"order": name, "why": str(error)})

    def _attach(self, wanted: AttachDebugger) -> None:
        if (
            self._controller is not None
            and self._debugger != wanted.owner
            and self._owners.alive(self._debugger) is not None
        ):
            raise ConfigError(
                "another debugger is attached to this turn already", self._gate.turn.turn_id, "one at a time"
            )
        self._detach()
        controller = Controller.at(self._gate, paused=wanted.pause)
        controller.listeners.subscribe(self._hear, DebugEvent)
        controller.breakpoints.replace(wanted.breakpoints)
        self._controller, self._debugger, self._looked = controller, wanted.owner, time.monotonic()
        before = time.time() - KEPT
        self._database.submit(lambda c: c.execute("DELETE FROM controls WHERE taken < ?", (before,)) and None)
        self._say("status", controller.status().to_dict())

    def _detach(self) -> None:
        if self._controller is not None:
            self._controller.go_away()
            self._controller = None

    def _hear(self, event: DebugEvent) -> None:
        match event.kind:
            case "moved" | "exchanged":
                return
            case told if self._controller is not None:
                self._say(told, dict(event.data) | {"status": self._controller.status().to_dict()})

    def _say(self, kind: Said, data: dict[str, Any]) -> None:
        values = (
            self._gate.turn.turn_id,
            SAID,
            dumps({"kind": kind, "data": data}),
            time.time(),
            time.time(),
        )
        self._database.submit(
            lambda c: (
                c.execute(
                    "INSERT INTO controls (turn, command, body, at, taken) VALUES (?, ?, ?, ?, ?)", values
                )
                and None
            )
        )


def _read(name: str, body: dict[str, Any]) -> AttachDebugger | DetachDebugger | Command:
    match name:
        case "attach":
            return AttachDebugger.of(body)
        case "detach":
            return DetachDebugger()
    return read_command(name, body)
