"""Sessions and journal, in a SQLite file or in PostgreSQL: nothing is lost, whatever ends the process."""

from __future__ import annotations

from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.journal import Closing, Recording, TurnLog
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.sessions.store.store import Begun, Claim, NewTurn, Store, store_for

__all__ = [
    "Begun", "Claim", "Closing", "Database", "NewTurn", "Recording", "SqliteDatabase", "Store", "TurnLog",
    "store_for",
]  # fmt: skip
