"""The review under the debugger: ``fsm-agent debug examples.review_loop.debugged:review`` opens it in the browser, ``--stdio``
and ``--dap`` in an editor; in Python it is ``DebugSession.of_table(store_for(folder), review)``.

The models follow simple rules here, so that a review that is forked goes on sensibly; put your own ``Agent`` in their place.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

from examples.review_loop.main import REVIEWER, TASK, WRITER, agent
from examples.review_loop.review import Review
from examples.review_loop.turn import ReviewTurn
from fsm_agent.fsm.runner import Runner
from fsm_agent.support.clock import SystemClock
from fsm_agent.testing import ScriptedModel, repeat, text


def review(begin: str | ReviewTurn) -> Runner:
    """The runner of a new review of the task ``begin``, or of a review to go on with: one that was forked or left."""
    turn = begin if isinstance(begin, ReviewTurn) else ReviewTurn(f"review-{uuid.uuid4().hex[:8]}", begin or TASK)
    home = Path(tempfile.mkdtemp())
    writer = agent(ScriptedModel(repeat(writes)), "You write short texts.", home / "writer")
    reviewer = agent(ScriptedModel(repeat(judges)), "You judge texts.", home / "reviewer")
    return Review(turn, writer, reviewer, SystemClock()).runner


def writes(body: dict[str, Any]) -> Any:
    """A better text, once a reviewer has said something."""
    return text(WRITER["A reviewer says" in body["messages"][-1]["content"]])


def judges(body: dict[str, Any]) -> Any:
    """Only the better text will do."""
    return text(REVIEWER[WRITER[0] not in body["messages"][-1]["content"]])
