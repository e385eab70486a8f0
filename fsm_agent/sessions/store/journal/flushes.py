"""What must be on disk before something happens. Everything else that a turn writes is on its way and waits
for the next of these, or for ``writer.LATE`` seconds. What requests need, they declare themselves."""

from __future__ import annotations

from fsm_agent.conversation.effects import ENGINE, MODEL, PURE_TOOL, QUESTION, TOOL
from fsm_agent.request import IDEMPOTENT, PURE, UNSAFE, Flush

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
    MODEL, TOOL, PURE_TOOL, QUESTION, ENGINE, IDEMPOTENT, UNSAFE, PURE, SAID, STEP, LAST,
    SUSPENDED, END, LET_GO,
)  # fmt: skip
"""The table in docs/sessions.md."""
