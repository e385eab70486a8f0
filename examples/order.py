"""A table of its own: an order. Stock is reserved, a card charged, a parcel sent, or all of it is undone.

``python -m examples.order DESK`` runs one in the folder ``shop``; ``--resume ID`` continues after a kill."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fsm_agent import BaseTurn, Workflow
from fsm_agent.fsm.properties import eventually, row
from fsm_agent.fsm.table import Counter, Rung, Table, end, go, left, lines_of, on

LIMITS, FORTH, BACK = {"tries": 2, "undos": 5}, ("Reserve", "Charge", "Ship"), ("Refund", "Release")
TRY = {state: Rung("again", state, left("tries"), ("tries",)) for state in FORTH}
UNDO = {state: Rung("undo again", state, left("undos"), ("undos",)) for state in BACK}
LINES = {
    "Reserve": [
        on("done", go("Charge"), resets=("tries",), why="the stock is ours"),
        on("refused", end("sold_out", "Closed"), why="there is no stock"),
        on("failed", TRY["Reserve"], go("Release"), why="no answer; it may be reserved anyway"),
    ],
    "Charge": [
        on("done", go("Ship"), resets=("tries",), why="the money is there"),
        on("refused", go("Release"), why="the bank said no"),
        on("failed", TRY["Charge"], go("Refund"), why="no answer; it may be charged anyway"),
    ],
    "Ship": [
        on("done", end("sent", "Closed"), why="the parcel is on its way"),
        on("refused", go("Refund"), why="no carrier delivers there"),
        on("failed", TRY["Ship"], go("Refund"), why="no answer"),
    ],
    "Refund": [
        on("done", go("Release"), why="the money is back, or was never taken"),
        on("failed", UNDO["Refund"], end("refund_owed", "Closed"), why="a person has to do it"),
    ],
    "Release": [
        on("done", end("cancelled", "Closed"), why="everything is as it was"),
        on("failed", UNDO["Release"], end("stock_held", "Closed"), why="a person has to do it"),
    ],
}
SETTLED = row("Ship.done", "Refund.done", "Refund.failed/2")  # sent, given back, or a person owes it
PAID = eventually("Who paid gets it or a refund.", SETTLED, after=row("Charge.done"), known="a bug in Ship")
STATES, BUG = (*FORTH, *BACK, "Closed"), (("crashed", dict.fromkeys((*FORTH, *BACK), "bug")),)
COUNTERS = tuple(Counter(name) for name in LIMITS)
TABLE = Table("order", STATES, "Closed", COUNTERS, lines_of(LINES), macros=BUG, properties=(PAID,))


@dataclass(frozen=True)
class Do:
    """One act at a service: done, refused or failed. ``key`` is the same whenever it is repeated."""

    act: str
    key: str
    items: tuple[str, ...]
    reply: ClassVar[type] = str


@dataclass(frozen=True)
class Pay(Do):
    """The bank knows no keys, so a charge that may have been made is looked up, never repeated."""

    effect: ClassVar = "unsafe"

    def in_doubt(self) -> str:
        return "failed"


@dataclass
class Order(BaseTurn):
    items: list[str]
    said: list[str] = field(default_factory=list)
    usual_limits: ClassVar = LIMITS
    outcomes: ClassVar = {"sent": "completed", "cancelled": "partial"}


def acting(request: type[Do], act: str) -> Any:
    def state(turn: Order) -> Generator[Do, str, str]:
        again = "tries" in turn.spent and request is Pay  # it may have been charged: the bank is asked
        kind, what = (Do, "look_up") if again else (request, act)
        answer = yield kind(what, turn.turn_id, tuple(turn.items))
        turn.said.append(f"{act}: {answer}")
        return "failed" if answer == "refused" and turn.state in BACK else answer

    return state


async def serve(folder: Path, request: Do) -> str:
    """Act, with a line in ``ledger.jsonl``; ``says.json`` there names acts that are refused or fail."""
    ledger, says = folder / "ledger.jsonl", folder / "says.json"
    if request.act == "look_up":
        return "done" if json.dumps(asdict(request) | {"act": "charge"}) in ledger.read_text() else "refused"
    said = json.loads(says.read_text()).get(request.act, "done") if says.exists() else "done"
    if said == "done":
        with ledger.open("a") as lines:
            print(json.dumps(asdict(request)), file=lines)
    return str(said)


def workflow(folder: Path = Path("shop"), perform: Any = None) -> Workflow[Order]:
    """Orders at these services, or at others in their place."""
    states = {name: acting(Pay if name == "Charge" else Do, name.lower()) for name in (*FORTH, *BACK)}
    perform = perform or partial(serve, folder)
    return Workflow(TABLE, states, Order, perform, begin=lambda text: Order(text.split()), home=folder)


if __name__ == "__main__":
    resumed, orders = sys.argv[1:2] == ["--resume"], workflow()
    result = (orders.resume(sys.argv[2]) if resumed else orders.start(Order(sys.argv[1:] or ["DESK"]))).run()
    print(*result.turn.said, f"{result.turn_id}: {result.exit} ({result.outcome})", sep="\n")
