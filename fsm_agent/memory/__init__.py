"""What an agent remembers between sessions: two files that it keeps itself, and optionally a service outside.

>>> from fsm_agent.memory import MemoryFile, MemoryProvider
"""

from fsm_agent.memory.external import MemoryProvider
from fsm_agent.memory.files import EntryRefused, Held, MemoryFile, Notes, Operation

__all__ = ["EntryRefused", "Held", "MemoryFile", "MemoryProvider", "Notes", "Operation"]
