"""Everything for testing turns: scripts that cover a table, invariants, and public fakes of everything that a
turn touches.

>>> from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, text, tools   # fakes
>>> from fsm_agent.testing import pair_scripts, row_scripts  # scripts that cover a table
>>> from fsm_agent.testing import INVARIANTS, CountingTurn, Look  # what always holds
>>> from fsm_agent.testing import assert_properties  # what a table claims
>>> from fsm_agent.testing.strategies import histories, replies  # needs hypothesis
>>> from fsm_agent.testing.machine import TurnMachine  # needs hypothesis

The names are loaded on first use: the package is also a pytest plugin, and must not slow the start of
a test run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fsm_agent.providers.scripted import FakeClock, ScriptedModel
    from fsm_agent.providers.scripted.replies import (
        Call,
        Reply,
        bad_json,
        blank,
        call,
        content_filter,
        cut,
        cut_tool_call,
        drop,
        empty_sse,
        json_reply,
        length,
        malformed_chunk,
        no_finish,
        overflow,
        reasoning,
        refusal,
        repeat,
        silence,
        slow,
        status,
        text,
        tools,
    )
    from fsm_agent.testing.coverage import Footprints, RowCoverage
    from fsm_agent.testing.fakes import FakeMemory, cancelled_at
    from fsm_agent.testing.invariants import INVARIANTS, Invariant, InvariantBroken, Look, Moved, Place
    from fsm_agent.testing.scripts import (
        CountingTurn,
        Cover,
        Facts,
        PossibleScript,
        Script,
        assert_properties,
        cover,
        ids_of,
        pair_scripts,
        play,
        possible_scripts,
        rehearse,
        row_scripts,
    )
    from fsm_agent.testing.server import Received, ScriptedServer

_IN = {
    "providers.scripted": "FakeClock ScriptedModel",
    "providers.scripted.replies": (
        "Call Reply bad_json blank call content_filter cut cut_tool_call drop empty_sse json_reply "
        "length malformed_chunk no_finish overflow reasoning refusal repeat silence slow status text "
        "tools"
    ),
    "testing.coverage": "Footprints RowCoverage",
    "testing.fakes": "FakeMemory cancelled_at",
    "testing.invariants": "INVARIANTS Invariant InvariantBroken Look Moved Place",
    "testing.scripts": (
        "CountingTurn Cover Facts PossibleScript Script assert_properties cover ids_of pair_scripts "
        "play possible_scripts rehearse row_scripts"
    ),
    "testing.server": "Received ScriptedServer",
}
_HOMES = {name: f"fsm_agent.{module}" for module, names in _IN.items() for name in names.split()}

__all__ = [
    "INVARIANTS", "Call", "CountingTurn", "Cover", "Facts", "FakeClock", "FakeMemory", "Footprints",
    "Invariant", "InvariantBroken", "Look", "Moved", "Place", "PossibleScript", "Received", "Reply",
    "RowCoverage", "Script", "ScriptedModel", "ScriptedServer", "assert_properties", "bad_json", "blank",
    "call", "cancelled_at", "content_filter", "cover", "cut", "cut_tool_call", "drop", "empty_sse",
    "ids_of", "json_reply", "length", "malformed_chunk", "no_finish", "overflow", "pair_scripts", "play",
    "possible_scripts", "reasoning", "refusal", "rehearse", "repeat", "row_scripts", "silence", "slow",
    "status", "text", "tools",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
