"""An app whose agent hands the conversation over to another one, and whose process is killed ``before`` the turn of
that one begins, or ``in`` it, when ``HANDING_DIES`` says so."""

from __future__ import annotations

import os
import signal
from typing import Any

from fsm_agent import Agent
from fsm_agent.runtime.events import EVERYWHERE, Opened, Stopped
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.dispatch.app import SETTINGS

DIES = os.environ.get("HANDING_DIES", "")
handed = False


def _hear(event: Stopped | Opened) -> None:
    global handed
    if handed and DIES == "in" and isinstance(event, Opened):
        os.kill(os.getpid(), signal.SIGKILL)
    if isinstance(event, Stopped) and event.how == "ended" and event.result.turn_exit_reason == "handed_over":
        handed = True
        if DIES == "before":
            os.kill(os.getpid(), signal.SIGKILL)


EVERYWHERE.subscribe(_hear, Opened, Stopped)


def make_agent() -> Agent[Any, Any]:
    """The agent of one turn."""
    other = Agent(ScriptedModel(repeat(text("I am the other"))), name="other", toolsets=[], settings=SETTINGS)
    over = ScriptedModel(repeat(tools(call("transfer_to_other", {}, "c1"))))
    return Agent(over, name="first", toolsets=[], handoffs=[other], settings=SETTINGS)
