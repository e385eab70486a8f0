"""What must be on disk before something happens. Everything else that a turn writes is on its way and waits
for the next of these, or for ``writer.LATE`` seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Needed = Literal["all with its intent", "the row that paid for it", "all", "nothing"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Before ``what`` happens, ``needs`` is on disk, because of a promise."""

    what: str
    needs: Needed
    promise: str


MODEL = Flush(
    "a request goes to a model",
    "the row that paid for it",
    "a request that is lost is counted: no crash gives a turn more of them than its budget",
)
TOOL = Flush(
    "a tool that is unsafe or idempotent runs",
    "all with its intent",
    "an unsafe call runs at most once, an idempotent one under one key only",
)
PURE_TOOL = Flush(
    "a pure tool runs",
    "nothing",
    "it changes nothing, so it may run again",
)
QUESTION = Flush("a person is asked", "all with its intent", "another process may answer it")
ENGINE = Flush(
    "a context engine is asked",
    "all with its intent",
    "it is asked once for each step",
)
REQUEST = Flush(
    "a request of a workflow that is not pure is performed",
    "the row that paid for it",
    "what led to it is not done again",
)
UNSAFE_REQUEST = Flush(
    "an unsafe request of a workflow is performed", "all with its intent", "it is performed at most once"
)
SMALL = Flush("anything else is asked for", "nothing", "it is answered again when the visit is run again")
SAID = Flush(
    "what a person said meanwhile is taken up",
    "all",
    "a message that was taken is not lost with the process that took it",
)
STEP = Flush(
    "`step()` returns, or a debugger is told of a move", "all", "who looks into the store finds what was told"
)
LAST = Flush(
    "the last state of a turn begins",
    "all",
    "what others are told of a turn is told by its owner, and of what is stored",
)
SUSPENDED = Flush(
    "a turn is suspended", "all", "who answers finds what is asked, whatever becomes of the process"
)
END = Flush("a result is returned", "all", "`result.stored` is true only of what a crash cannot take back")
LET_GO = Flush(
    "a turn that was stopped lets go of its session", "all", "who resumes it finds it where it stood"
)
FLUSHES = (
    MODEL, TOOL, PURE_TOOL, QUESTION, ENGINE, REQUEST, UNSAFE_REQUEST, SMALL, SAID, STEP, LAST,
    SUSPENDED, END, LET_GO,
)  # fmt: skip
"""The table in docs/sessions.md."""
