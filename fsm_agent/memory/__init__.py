"""What an agent remembers between sessions: two files that it keeps itself, and optionally a service outside.

>>> from fsm_agent.memory import MemoryFile, MemoryProvider
"""

from fsm_agent.memory.entries import EntryRefused, Operation
from fsm_agent.memory.files import Held, MemoryFile, Notes
from fsm_agent.memory.provider import MemoryProvider

__all__ = ["EntryRefused", "Held", "MemoryFile", "MemoryProvider", "Notes", "Operation"]
