"""The transition table of a compaction that a person asks for, between turns. It has the rungs of the turn's
table, and its one state is the turn's: each request to a model is a row's here, too."""

from __future__ import annotations

from collections.abc import Mapping

from fsm_agent.fsm.table import Counter, Table, end, lines_of, on
from fsm_agent_states.table import SUMMARIZER, TURN, UNAIDED


def _default_limits() -> Mapping[str, int]:
    """Return the limits with default settings and one auxiliary model."""
    limits = TURN.default_limits() if TURN.default_limits else {}
    return {name: limits[name] for name in ("attempts", "summarizers", "modelless_compactions")}


COMPACTION = Table(
    name="compaction",
    states=("Compress", "Done"),
    final="Done",
    counters=(Counter("attempts", cap=True), Counter("summarizers"), Counter("modelless_compactions")),
    lines=lines_of(
        {
            "Compress": [
                on("unsummarized", SUMMARIZER, UNAIDED, end("unchanged", "Done"), why="one request a visit"),
                on("unaffordable", UNAIDED, end("unchanged", "Done"), why="the summary could pass a limit"),
                on("compressed", end("compacted", "Done"), why="fewer rows, fewer tokens or no images"),
                on("stuck", end("unchanged", "Done"), why="nothing can go"),
                on("outgrown", end("unchanged", "Done"), why="same, but the next model is wider"),
                on("cancelled", end("interrupted", "Done"), why="a person broke it off"),
            ]
        }
    ),
    default_limits=_default_limits,
)
