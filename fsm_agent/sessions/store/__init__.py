"""Sessions and journal, in a SQLite file or in PostgreSQL: nothing is lost, whatever ends the process."""

from __future__ import annotations

from fsm_agent.sessions.store.claims import Claim
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.journal.conversation_log import ConversationLog
from fsm_agent.sessions.store.journal.conversation_recording import ConversationRecording
from fsm_agent.sessions.store.journal.log import Closing, TurnLog
from fsm_agent.sessions.store.journal.recording import Recording
from fsm_agent.sessions.store.sqlite_database import SqliteDatabase
from fsm_agent.sessions.store.store import Begun, NewTurn, Store, store_for

__all__ = [
    "Begun", "Claim", "Closing", "ConversationLog", "ConversationRecording", "Database", "NewTurn",
    "Recording", "SqliteDatabase", "Store", "TurnLog", "store_for",
]  # fmt: skip
