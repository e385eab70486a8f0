"""Mistakes of a first workflow: each of them is said in one line that names it, most of them when the workflow
is made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fsm_agent import BaseTurn, Workflow
from fsm_agent.errors import ConfigError, UndeclaredEvent
from fsm_agent.fsm.table import Table, end, go, lines_of, on

PARTS = {
    "Pack": [on("packed", go("Send"), why="it is closed")],
    "Send": [on("sent", end("fine", "Over"), why="it is gone")],
}
STATES = ("Pack", "Send", "Over")
TABLE = Table("parcel", STATES, "Over", counters=(), lines=lines_of(PARTS))
ENDING = Table(
    "parcel", STATES, "Over", (), lines_of(PARTS), macros=(("crashed", {"Pack": "bug", "Send": "bug"}),)
)


@dataclass
class Weigh:
    grams: int = 1
    reply: ClassVar[Any] = int


@dataclass
class Parcel(BaseTurn):
    what: str = ""
    outcomes: ClassVar = {"fine": "completed"}


def pack(turn: Any) -> Generator[Any, Any, str]:
    yield Weigh()
    return "packed"


def send(turn: Any) -> Generator[Any, Any, str]:
    yield from ()
    return "sent"


def at_once(turn: Any) -> Any:
    return "packed"


async def waits(turn: Any) -> str:
    return "packed"


async def yields(turn: Any) -> AsyncGenerator[Any, Any]:
    yield Weigh()


class Waits:
    async def __call__(self, turn: Any) -> str:
        return "packed"


async def weigh(request: Weigh) -> int:
    return 7


def weigh_at_once(request: Weigh) -> int:
    return 7


async def weigh_in_words(request: Weigh) -> str:
    return "heavy"


def flow(home: Path, **given: Any) -> Workflow[Any]:
    parts = {"table": TABLE, "states": {"Pack": pack, "Send": send}, "turn": Parcel, "perform": weigh}
    return Workflow(**{**parts, "home": home, **given})


class Forgotten(BaseTurn):
    what: str = ""


class Inherited(Parcel):
    """Has no field of its own."""


@dataclass
class Misspelt(BaseTurn):
    outcomes: ClassVar = {"fne": "completed"}


@dataclass
class Unheard(BaseTurn):
    outcomes: ClassVar = {"fine": "complete"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an async state": (
        {"states": {"Pack": waits, "Send": send}},
        "Pack of parcel cannot be async; given: waits; allowed: a generator function",
    ),
    "an async generator": ({"states": {"Pack": yields, "Send": send}}, "Pack of parcel cannot be async"),
    "an object that is async": (
        {"states": {"Pack": Waits(), "Send": send}},
        "Pack of parcel cannot be async",
    ),
    "a part of an async function": (
        {"states": {"Pack": partial(waits), "Send": send}},
        "Pack of parcel cannot be async",
    ),
    "no function": ({"states": {"Pack": "pack", "Send": send}}, "Pack of parcel cannot be this; given: str"),
    "a misspelt state": (
        {"states": {"Pack": pack, "Sned": send}},
        "table parcel has no state of this name; given: Sned; allowed: Send, perhaps; all of them: Pack, Send,",
    ),
    "a missing state": (
        {"states": {"Pack": pack}},
        "table parcel has a state without a function; given: Send; allowed: one for each of Pack, Send",
    ),
    "a forgotten @dataclass": (
        {"turn": Forgotten},
        "Forgotten is not a dataclass itself, so its fields are not stored; given: what; allowed: @dataclass"
        " before class Forgotten",
    ),
    "a misspelt exit": (
        {"turn": Misspelt},
        "Misspelt.outcomes has an exit that table parcel has not; given: fne; allowed: fine, perhaps",
    ),
    "an unknown outcome": (
        {"turn": Unheard},
        "Unheard.outcomes has no such outcome for fine; given: complete; allowed: completed, failed, partial",
    ),
    "nothing that performs": ({"perform": None}, "requests cannot be performed by this; allowed: async def"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_when_the_workflow_is_made(mistake: str, tmp_path: Path) -> None:
    given, said = REFUSED[mistake]
    with pytest.raises(ConfigError) as refused:
        flow(tmp_path, **given)
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_a_class_without_fields_of_its_own_needs_no_decorator(tmp_path: Path) -> None:
    assert flow(tmp_path, turn=Inherited).start(Inherited("a vase")).run().outcome == "completed"


NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "a state without yield": (
        {"states": {"Pack": at_once, "Send": send}},
        "TypeError: Pack is no generator function; given: str 'packed'; allowed: a function with a yield;"
        " `yield from ()` when it asks for nothing",
    ),
    "a performer that is not async": (
        {"perform": weigh_at_once},
        "ConfigError: what performs Weigh is not async; given: int 7; allowed: async def weigh_at_once(request)",
    ),
    "one of its own that is not async": (
        {"perform": {Weigh: weigh_at_once}},
        "ConfigError: what performs Weigh is not async; given: int 7; allowed: async def weigh_at_once(request)",
    ),
    "a request that is not performed": (
        {"perform": {Parcel: weigh}},
        "ConfigError: nobody performs such a request; given: Weigh; allowed: Parcel",
    ),
    "a reply of another type": (
        {"perform": weigh_in_words},
        "ConfigError: the reply to Weigh cannot be stored; given: str 'heavy'; allowed: int",
    ),
}


@pytest.mark.parametrize("mistake", NAMED)
def test_a_mistake_that_shows_while_it_runs_is_the_bug_of_the_turn(mistake: str, tmp_path: Path) -> None:
    given, said = NAMED[mistake]
    result = flow(tmp_path, table=ENDING, **given).start(Parcel()).run()
    assert (result.exit, result.turn.bug) == ("bug", said)
    with pytest.raises(UndeclaredEvent) as raised:
        flow(tmp_path, **given).start(Parcel()).run()
    assert str(raised.value).startswith(f"parcel: Pack failed: {said} (the turn waits until that is mended")


def test_a_function_that_gives_back_a_generator_or_a_coroutine_is_as_good(tmp_path: Path) -> None:
    made = flow(
        tmp_path,
        states={"Pack": lambda turn: pack(turn), "Send": partial(send)},
        perform=lambda request: asyncio.ensure_future(weigh(request)),
    )
    assert made.start(Parcel()).run().exit == "fine"
