"""All that code of this process reaches without being handed it.

Everything else is handed on: what belongs to a home is in its ``Store``, what belongs to an agent in its
``Services``. Here stands only what has no owner, because it is looked up by people's code, by tools, by
libraries' hooks, or at the end of the process.

=====================  ==================================  ========================  =====================
name                   what                                put there by             goes away
=====================  ==================================  ========================  =====================
STORES                 the store of each home in use       ``store_for``            with its last user
EVERYWHERE             what happens in all turns, and      this module              never
                       outside of turns
MEMORIES               external memories in use, to be     their first ``sync``     with their agents
                       waited for when the process ends
REMOTE_DEBUG_SERVERS   makes what obeys a debugger of      ``fsm_agent``             never
                       another process                     (its import)
TURN                   stream of the turn that runs here   ``running(stream)``      when its block ends
TOOL_CONTEXT           where a tool of the agent is called ``AgentTools.run``       with the call's task
TOOL_STOPPED           tells the running tool to stop      ``ToolRunner.run``       with the call's thread
PROGRAM_DOOR           where a program's calls come out    ``Programs.begun``        with the program's task
CONNECTIONS            pools of connections to models, by   their first request   with their last
                       loop, origin and proxy                                     user, or the loop
CLIENTS                clients of SDKs that ports share    their first call          with their last
                                                                                     user
DEPARTURE              has this task's request left?       a model port, each call  with the call's task
KEY_VARIABLES          what no command may see of the      ``hide_from_children``   never
                       environment, by name
KEYS                   keys in use, likewise by value,     ``keep_secret``          never
                       and what every mask hides
GUESSES                lines about models that nobody      ``EffectHandler``        never
                       knows, which were said
TRACE_HEADERS          what ties this task's request to    a span of a request,     with that span
                       a trace, for its receiver           when it is asked for
=====================  ==================================  ========================  =====================

Beside it there are the engine's own event loop (``fsm_agent.support.threads.LOOP``), its threads for what
blocks (``fsm_agent.support.workers.WORKERS``), the places of running turns
(``fsm_agent.runtime.turn_limiter``), and caches of pure functions, which can be emptied at any time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fsm_agent.runtime.stream import Stream

if TYPE_CHECKING:
    from fsm_agent.fsm.pause_point import PausePoint
    from fsm_agent.memory.external import ExternalMemory
    from fsm_agent.providers.connections import Connections, Key
    from fsm_agent.providers.departure import Departure
    from fsm_agent.providers.shared_client import SharedClient
    from fsm_agent.sessions.store import Database, Store
    from fsm_agent.sessions.store.owners import Owners
    from fsm_agent.toolsets.programs import ProgramDoor
    from fsm_agent.toolsets.tool_context import ToolContext

LOCK = threading.Lock()
"""Held while ``STORES`` is changed."""
STORES: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
EVERYWHERE = Stream()
MEMORIES: weakref.WeakSet[ExternalMemory] = weakref.WeakSet()
REMOTE_DEBUG_SERVERS: list[Callable[[PausePoint, Database, Owners], Any]] = []
TURN: ContextVar[Stream] = ContextVar("fsm_agent_turn", default=EVERYWHERE)
TOOL_CONTEXT: ContextVar[ToolContext] = ContextVar("fsm_agent_tool_context")
TOOL_STOPPED: ContextVar[threading.Event | None] = ContextVar("fsm_agent_tool_stopped", default=None)
PROGRAM_DOOR: ContextVar[ProgramDoor] = ContextVar("fsm_agent_program_door")
CONNECTIONS: dict[Key, Connections] = {}
CLIENTS: weakref.WeakValueDictionary[Hashable, SharedClient] = weakref.WeakValueDictionary()
DEPARTURE: ContextVar[Departure] = ContextVar("fsm_agent_departure")
KEY_VARIABLES: set[str] = set()
GUESSES: set[str] = set()
TRACE_HEADERS: ContextVar[Mapping[str, str]] = ContextVar(
    "fsm_agent_trace_headers", default=MappingProxyType({})
)


class running:  # noqa: N801 - it is used as a function is; a generator would cost each request more
    """What is told in this block is told as a part of that turn."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = TURN.set(self._stream)

    def __exit__(self, *_: object) -> None:
        try:
            TURN.reset(self._before)
        except ValueError:  # a turn that was left is closed in another context than it ran in
            return
