"""The table of a review loop: a writer drafts, a reviewer criticises, the writer revises, until the text is accepted.

Three budgets end it in any case: ``rounds`` of revision, ``retries`` of a model that fails, and ``unclears`` of a reviewer
who gives no verdict. Try::

    fsm-agent verify examples.review_loop.table:TABLE --set rounds=3 --set retries=2 --set unclears=1
    fsm-agent diagram examples.review_loop.table:TABLE --format svg > review.svg
"""

from __future__ import annotations

from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

FINAL = "Close"
COUNTERS = (Counter("rounds"), Counter("retries"), Counter("unclears"))


def over(reason: str) -> Rung:
    """The end of the loop, with its reason."""
    return end(reason, FINAL)


def retry(state: str) -> Rung:
    """The same state again; it waits first, because it sees that a retry was spent."""
    return Rung("retry", state, left("retries"), ("retries",))


REVISE = Rung("revise", "Revise", left("rounds"), ("rounds",))
ASK_AGAIN = Rung("ask again", "Criticise", left("unclears"), ("unclears",))

LINES = lines_of(
    {
        "Draft": [
            on("written", go("Criticise"), resets=("retries",), why="there is a text to look at"),
            on("failed", retry("Draft"), over("writer_failed"), why="the writer gave no text"),
        ],
        "Criticise": [
            on("accepted", over("accepted"), why="nothing is left to say against it"),
            on("objections", REVISE, over("rounds_spent"), resets=("retries", "unclears"), why="it says what is wrong"),
            on("unclear", ASK_AGAIN, over("no_verdict"), why="neither accepted nor criticised"),
            on("failed", retry("Criticise"), over("reviewer_failed"), why="the reviewer gave no text"),
        ],
        "Revise": [
            on("written", go("Criticise"), resets=("retries",), why="a new text to look at"),
            on("unchanged", over("stalemate"), why="the writer stands by the text"),
            on("failed", retry("Revise"), over("writer_failed"), why="the writer gave no text"),
        ],
    }
)
WORKING = ("Draft", "Criticise", "Revise")

TABLE = Table(
    name="review",
    states=(*WORKING, FINAL),
    final=FINAL,
    counters=COUNTERS,
    lines=LINES,
    macros=(("cancelled", dict.fromkeys(WORKING, "cancelled")), ("crashed", dict.fromkeys(WORKING, "bug"))),
)
