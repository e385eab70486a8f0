"""A table in a table: a shop takes an order (``examples.order``), and another item when one is sold out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from examples import order
from fsm_agent import BaseTurn, Nested, Workflow
from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on, runs

OTHER, BY_HAND = Rung("another item", "Order", left("others"), ("others",)), end("by_hand", "Closed")
LINES = {"Order": [
    *(on(exit, BY_HAND, why="a person has to look") for exit in ("bug", "refund_owed", "stock_held")),
    on("sold_out", OTHER, end("nothing", "Closed"), why="the item is out of stock"),
    on("cancelled", OTHER, end("nothing", "Closed"), why="the bank or the carrier said no"),
    on("sent", end("delivered", "Closed"), why="the parcel is on its way"),
]}  # fmt: skip
LIMITS = {"others": 1, **{f"order.{name}": most for name, most in order.LIMITS.items()}}
COUNTERS, INNER = (Counter("others"),), {"Order": runs(order.TABLE)}
TABLE = Table("shop", ("Order", "Closed"), "Closed", COUNTERS, lines_of(LINES), inner=INNER)


@dataclass
class Visit(BaseTurn):
    wanted: list[str]
    said: list[str] = field(default_factory=list)
    usual_limits: ClassVar = {"others": 1}


def begin(turn: Visit) -> list[order.Order]:
    return [order.Order([turn.wanted[turn.count("others") % len(turn.wanted)]])]


def join(turn: Visit, ended: list[order.Order]) -> None:
    turn.said += ended[0].said


def workflow(folder: Path = Path("shop")) -> Workflow[Visit]:
    states = {"Order": Nested(order.workflow(folder), begin=begin, join=join)}
    return Workflow(TABLE, states, Visit, {}, begin=lambda text: Visit(text.split()), home=folder)
