"""Phase 4: front, summary, rest; in alternating roles, with the summary framed so that nobody answers it.
(Why: decision 17.)"""

from __future__ import annotations

from fsm_agent.conversation.compaction.divide import Division
from fsm_agent.conversation.messages import Message
from fsm_agent.support.redaction import mask

PREFIX = (
    "[A summary of the earlier conversation, for reference only. What was asked in it is settled unless it"
    " says otherwise; answer only the user's messages behind it. Memory stays authoritative, and the tools"
    " stay usable.]\n\n"
)
END = "\n\n[End of the summary]"
BRIDGE = "Understood. I go on from there."


def summary_row(text: str) -> Message:
    """Return the row that a summary is: framed as one, its keys masked, and marked so that it counts as no
    message of the user."""
    return Message("user", PREFIX + mask(text) + END, summary=True)


def assembled(division: Division, summary: str, carried: str = "") -> list[Message]:
    """The shorter history. ``carried`` is added behind the summary (open items of a task list, for instance).

    The summary is a row of its own: no live row is rewritten. Where two rows of one role would meet, a
    bridging row is put between them."""
    text = "\n\n".join(part for part in (summary.strip(), carried.strip()) if part)
    row = summary_row(text)
    rest = division.kept[len(division.front) :]
    rows = [*division.front]
    if rows and rows[-1].role == "user":
        rows.append(Message("assistant", BRIDGE))
    rows.append(row)
    if rest and rest[0].role == "user":
        rows.append(Message("assistant", BRIDGE))
    return [*rows, *rest]
