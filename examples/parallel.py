"""Tables at once, and joined: a book, each chapter of which is a review (``examples.review_loop``)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from examples import review_loop
from fsm_agent import BaseTurn, Nested, Workflow
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on, runs

AGAIN = Rung("write again", "Write", left("drafts"), ("drafts",))
LINES = {"Write": [  # the first line that any chapter's exit matches is taken: the worst come first
    *(on(exit, end(exit, "Shelf"), why="no chapter can help that") for exit in ("bug", "cancelled")),
    *(on(exit, AGAIN, end("unfinished", "Shelf"), why="some chapter is not good")
      for exit in ("model_failed", "no_verdict", "stalemate", "rounds_spent")),
    on("accepted", end("printed", "Shelf"), why="all chapters are good"),
]}  # fmt: skip
LIMITS = {"drafts": 1, "chapters": 20, **{f"review.{n}": most for n, most in review_loop.LIMITS.items()}}
COUNTERS, INNER = (Counter("drafts"),), {"Write": runs(review_loop.TABLE, most="chapters")}
TABLE = Table("book", ("Write", "Shelf"), "Shelf", COUNTERS, lines_of(LINES), inner=INNER)


@dataclass
class Book(BaseTurn):
    titles: list[str]
    pages: dict[str, str] = field(default_factory=dict)
    usual_limits: ClassVar = {"drafts": 1, "chapters": 20}


def begin(turn: Book) -> list[review_loop.Review]:
    return [review_loop.Review(title) for title in turn.titles if title not in turn.pages]


def join(turn: Book, ended: list[review_loop.Review]) -> None:
    turn.pages |= {review.task: review.text for review in ended if review.exit == "accepted"}


def workflow(home: Path | None = None, **models: Any) -> Workflow[Book]:
    states = {"Write": Nested(review_loop.workflow(home=home, **models), begin=begin, join=join)}
    return Workflow(TABLE, states, Book, {}, begin=lambda text: Book(text.split(", ")), home=home)
