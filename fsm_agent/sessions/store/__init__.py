"""Sessions and journal on SQLite: nothing is lost, whatever ends the process."""

from __future__ import annotations

from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.journal.log import TurnLog
from fsm_agent.sessions.store.journal.recording import Recording
from fsm_agent.sessions.store.store import Begun, Store, store_for

__all__ = ["Begun", "Database", "Recording", "Store", "TurnLog", "store_for"]
