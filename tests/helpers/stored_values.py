"""Types that a ``Workflow`` turn may hold, with values of them: one of each kind (``EXAMPLES``), any number made
of these at random (``KINDS``), a workflow that holds one, and what it means that a value came back."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import itertools
import math
import os
import re
import signal
import sys
import uuid
from collections.abc import Collection, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Generic, Literal, NamedTuple, NewType, NotRequired, Optional, TypeVar, Union
from zoneinfo import ZoneInfo

import pydantic
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypeAliasType, TypedDict

from fsm_agent import BaseTurn, Workflow
from fsm_agent.fsm.codec import PART
from fsm_agent.fsm.table import Table, end, go, lines_of, on

T = TypeVar("T")
UserId = NewType("UserId", int)
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | float | bool | None")
BERLIN = ZoneInfo("Europe/Berlin")
AUTUMN = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
BY_PYDANTIC = pydantic.TypeAdapter(dt.datetime).validate_python("2026-01-01T00:00:00+02:00")


class Color(enum.Enum):
    RED = "red"
    BLUE = 2
    NONE = None


class Planet(enum.Enum):
    EARTH = (1, 2.5)
    MARS = dt.date(2026, 1, 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


@dataclass
class Item:
    name: str = ""
    due: dt.date | str = "some day"
    price: Decimal | None = None
    tags: set[Word] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Frozen:
    at: dt.datetime
    items: list[Item] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    item: T
    more: list[T] = field(default_factory=list)


@dataclass
class DateBox(Box[dt.date]):
    label: str = ""


@dataclass
class Tree:
    value: int | str
    children: list[Tree] = field(default_factory=list)
    left: Tree | None = None


@dataclass
class Drive:
    speed: int = 0
    gears: list[Fraction] = field(default_factory=list)


@dataclass
class Car:
    name: str
    drive: Drive = field(default_factory=Drive, metadata={PART: True})
    doors: int = field(default=4, init=False)
    warm: bool = field(default=False, compare=False)


@dataclass
class Doubling:
    """Makes another value of what it is given: only the first time."""

    value: int

    def __post_init__(self) -> None:
        self.value *= 2
        self.text = str(self.value)


class Point(NamedTuple):
    x: float
    label: Item | None = None


class Options(TypedDict, total=False):
    at: dt.date | dt.time
    ids: NotRequired[set[uuid.UUID]]


class Model(BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    count: int = pydantic.Field(3, gt=0, alias="Count")
    due: dt.date | str = "some day"
    inner: Model | None = None
    where: pydantic.HttpUrl | None = None
    _seen: set[int] = pydantic.PrivateAttr(default_factory=set)

    def see(self, number: int) -> None:
        """Change what only pydantic's private attributes hold."""
        self._seen.add(number)


class GenericModel(BaseModel, Generic[T]):
    item: T


class Dates(pydantic.RootModel[list[dt.date]]):
    pass


@pydantic.dataclasses.dataclass
class Checked:
    value: pydantic.PositiveInt


def _model() -> Model:
    given: Any = {"Count": 4, "due": dt.date(2026, 1, 1), "where": "https://example.org/", "more": [1, None]}
    made = Model(**given)
    made.count, made.inner = -7, Model.model_validate({})
    made.see(4)
    return made


def _changed(held: Any, **fields: Any) -> Any:
    for name, one in fields.items():
        setattr(held, name, one)
    return held


EXAMPLES: list[tuple[Any, Any]] = [
    (None, None), (bool, True), (int, 10**5000), (float, math.nan), (float, -0.0), (float, 3),
    (complex, complex(-0.0, math.inf)), (str, "\ud800\0é"), (str, "\ud800\udc00"), (bytes, b"\xff\0"),
    (bytearray, bytearray(b"\xff")), (Decimal, Decimal("1.10")), (Fraction, Fraction(1, 3)),
    (uuid.UUID, uuid.UUID(int=7)), (dt.date, dt.date.min), (dt.datetime, dt.datetime.max),
    (dt.datetime, AUTUMN), (dt.datetime, BY_PYDANTIC),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-5), "C]E#1"))),
    (dt.time, dt.time(1, 2, 3, 4, tzinfo=BERLIN, fold=1)), (dt.timedelta, dt.timedelta.max),
    (Path, Path("a/\udcff")), (PurePosixPath, PurePosixPath("/")), (PurePath, PureWindowsPath("c:\\x")),
    (Color, Color.RED), (Color | None, Color.NONE), (Planet, Planet.EARTH), (Level, Level.HIGH),
    (Word, Word.NO), (Rights, Rights.READ | Rights.RUN), (Literal["a", 1, Level.LOW, b"x"], Level.LOW),
    (UserId, UserId(3)), (Json, {"a": [1, {"is": None}]}), (Any, {"is": "set", "set": [1.5, None, True]}),
    (object, "to"), (list, [1, "a", {"kept": 1}]), (dict[str, Any], {"to": [1]}),
    (list[dt.datetime], [AUTUMN, dt.datetime.min]),
    (dict[uuid.UUID, Decimal], {uuid.UUID(int=7): Decimal("-0")}),
    (dict[int | str, float], {1: math.inf, "1": -0.0}), (dict[tuple[int, Word], str], {(1, Word.YES): ""}),
    (set[Color], {Color.RED, Color.NONE}),
    (frozenset[frozenset[int]], frozenset({frozenset({1}), frozenset()})), (tuple[Path, ...], (Path("a"),)),
    (tuple[int, dt.date, str], (1, dt.date.max, "")), (tuple[()], ()),
    (collections.deque[int], collections.deque([1, 2], maxlen=2)),
    (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
    (collections.Counter[str], collections.Counter("aab")), (Sequence[int], [1]), (Sequence[int], (1,)),
    (Mapping[str, Item], {"a": Item()}), (AbstractSet[int], frozenset({1})), (Collection[int], {1}),
    (int | str, "1"), (float | int, 1.0), (dt.date | str, "2026-01-01"),
    (dt.date | dt.datetime, dt.datetime(2026, 1, 1)), (float | str, math.inf),
    (Item | Frozen | Point | str | None, Point(1)), (Box[int] | Box[str], Box("a")),
    (Item, Item("a", dt.date(2026, 1, 1), Decimal("1.10"), {Word.YES})), (Frozen, Frozen(AUTUMN, [Item()])),
    (Box[dt.date], Box(dt.date.max)), (DateBox, DateBox(dt.date.max, [dt.date.min])),
    (Tree, Tree(1, [Tree("1", left=Tree(2))])),
    (Car, _changed(Car("a", Drive(3, [Fraction(2)])), doors=2, warm=True)), (Doubling, Doubling(3)),
    (Point, Point(-0.0, Item())), (Options, {"at": dt.date.max}),
    (list[Options], [{"at": dt.time(0, fold=1)}, {"ids": {uuid.UUID(int=7)}}]), (Model, _model()),
    (GenericModel[dt.date], GenericModel[dt.date](item=dt.date.max)), (Dates, Dates([dt.date.max])),
    (Checked, _changed(Checked(3), value=-3)), (ipaddress.IPv4Address, ipaddress.IPv4Address("127.0.0.1")),
    (re.Pattern, re.compile("a")), (pydantic.HttpUrl, pydantic.HttpUrl("https://example.org/")),
]  # fmt: skip


# At random


@dataclass(frozen=True)
class Kind:
    """A type and its values. ``hashable``: they may be keys, and members of a set."""

    annotation: Any
    values: st.SearchStrategy[Any]
    hashable: bool = True


ZONES = st.sampled_from([None, BERLIN, dt.UTC, dt.timezone(dt.timedelta(hours=-3, seconds=7), "odd")])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TEXT = st.text(st.characters(), max_size=5) | st.text(st.characters(categories=["Cs"]), max_size=2)
LEAVES = [
    Kind(bool, st.booleans()),
    Kind(int, st.integers()),
    Kind(float, st.floats()),
    Kind(str, TEXT),
    Kind(bytes, st.binary(max_size=5)),
    Kind(Decimal, st.decimals(allow_nan=False)),
    Kind(Fraction, st.fractions()),
    Kind(complex, st.complex_numbers(allow_nan=False)),
    Kind(uuid.UUID, st.uuids()),
    Kind(dt.date, st.dates()),
    Kind(dt.datetime, st.builds(lambda at, zone: at.replace(tzinfo=zone), st.datetimes(), ZONES)),
    Kind(dt.time, st.times()),
    Kind(dt.timedelta, st.timedeltas()),
    Kind(Path, st.text("a/.", max_size=4).map(Path)),
    *(Kind(one, st.sampled_from(list(one))) for one in (Color, Planet, Level, Word)),
    Kind(Rights, st.integers(0, 7).map(Rights)),
    Kind(Literal["a", 1, Word.YES], st.sampled_from(["a", 1, Word.YES])),
    Kind(None, st.none()),
    Kind(Any, JSON, hashable=False),
    Kind(dict[str, Any], st.dictionaries(st.text(max_size=3), JSON, max_size=3), hashable=False),
]
NUMBER = itertools.count()


def _made_class(inner: list[Kind], how: str) -> Kind:
    name, fields = f"Made{next(NUMBER)}", {f"f{place}": one for place, one in enumerate(inner)}
    hints = {key: one.annotation for key, one in fields.items()}
    make: Any
    match how:
        case "model":
            hidden = pydantic.ConfigDict(arbitrary_types_allowed=True)
            bare: Any = type(name, (BaseModel,), {"__annotations__": hints, "model_config": hidden})
            make = lambda **given: bare.model_construct(**given)  # noqa: E731
            return Kind(bare, st.builds(make, **{key: one.values for key, one in fields.items()}), False)
        case "typed dict":
            make = TypedDict(name, hints)
        case "named tuple":
            make = NamedTuple(name, list(hints.items()))
        case _:
            make = dataclasses.make_dataclass(
                name, list(hints.items()), frozen=how == "frozen", slots=how != "plain"
            )
    hashable = how in ("frozen", "named tuple") and all(one.hashable for one in inner)
    return Kind(make, st.builds(make, **{key: one.values for key, one in fields.items()}), hashable)


def _keys(kind: Kind) -> st.SearchStrategy[Any]:
    """A text with both halves of a surrogate pair is not a key of a JSON object, and is refused."""
    if kind.annotation is not str:
        return kind.values
    return kind.values.filter(lambda key: not re.search("[\ud800-\udbff][\udc00-\udfff]", key))


def of(generic: Any, *arguments: Any) -> Any:
    """A generic type with these arguments."""
    return generic[arguments]


def _containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    keys = inner.filter(lambda one: one.hashable)
    few = {"max_size": 3}
    return st.one_of(
        inner.map(lambda one: Kind(of(list, one.annotation), st.lists(one.values, **few), False)),
        inner.map(lambda one: Kind(of(collections.deque, one.annotation), st.lists(one.values, **few).map(collections.deque), False)),
        inner.map(lambda one: Kind(of(tuple, one.annotation, ...), st.lists(one.values, **few).map(tuple), one.hashable)),
        inner.map(lambda one: Kind(of(Sequence, one.annotation), st.lists(one.values, **few).flatmap(lambda row: st.sampled_from([row, tuple(row)])), False)),
        st.tuples(inner, inner).map(lambda two: Kind(of(tuple, two[0].annotation, two[1].annotation), st.tuples(two[0].values, two[1].values), two[0].hashable and two[1].hashable)),
        keys.map(lambda one: Kind(of(set, one.annotation), st.sets(one.values, **few), False)),
        keys.map(lambda one: Kind(of(frozenset, one.annotation), st.frozensets(one.values, **few))),
        st.tuples(keys, inner).map(lambda two: Kind(of(dict, two[0].annotation, two[1].annotation), st.dictionaries(_keys(two[0]), two[1].values, **few), False)),
        st.lists(inner, min_size=2, max_size=4).map(lambda row: Kind(Union[tuple(one.annotation for one in row)], st.one_of(one.values for one in row), all(one.hashable for one in row))),  # noqa: UP007
        st.builds(_made_class, st.lists(inner, min_size=1, max_size=3), st.sampled_from(["plain", "slots", "frozen", "model", "typed dict", "named tuple"])),
    )  # fmt: skip


KINDS = st.recursive(st.sampled_from(LEAVES), _containers, max_leaves=4)


# Whether it came back


def identical(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(identical(a, b) for b in other) for a in one)
    if isinstance(one, Mapping):
        return len(one) == len(other) and all(map(identical, _pairs(one), _pairs(other)))
    if isinstance(one, list | tuple | collections.deque):
        same = len(one) == len(other) and all(map(identical, one, other))
        return same and getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
    if isinstance(one, BaseModel):
        return identical(one.__getstate__(), other.__getstate__())
    if dataclasses.is_dataclass(one):
        names = [each.name for each in dataclasses.fields(one)]
        return all(identical(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other) and (type(one) is int or repr(one) == repr(other))


def _pairs(mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(mapping.items())


# A workflow that holds one

TABLE = Table(
    name="holding", states=("Put", "Ask", "End"), final="End", counters=(),
    lines=lines_of({"Put": [on("put", go("Ask"), why="")], "Ask": [on("got", end("held", "End"), why="")]}),
)  # fmt: skip


class Killed(Exception):
    """In place of the end of the process."""


def holding(
    annotation: Any, first: Any, later: Any, home: Path, carried: list[Any], *, dies: bool = False
) -> Workflow[Any]:
    """A turn that begins with ``first`` in a field, puts ``later`` into another one, and then asks for that
    once more by an unsafe request that has it inside, which is noted in ``carried``. With ``dies`` it comes no
    further."""
    held: Any = dataclasses.make_dataclass(
        "Held",
        [("first", annotation), ("later", annotation), ("got", Optional[annotation], None)],  # noqa: UP045 - None | None is not a type
        bases=(BaseTurn,),
    )
    carries = {"reply": annotation, "effect": "unsafe", "in_doubt": lambda self: first}
    carry = dataclasses.make_dataclass("Carry", [("value", annotation)], namespace=carries)
    live = dataclasses.make_dataclass("Live", [], namespace={"effect": "pure"})

    def put(turn: Any) -> Generator[Any, Any, str]:
        yield from ()
        turn.later = later
        return "put"

    def ask(turn: Any) -> Generator[Any, Any, str]:
        turn.got = yield carry(turn.later)
        yield live()
        return "got"

    async def perform(request: Any) -> Any:
        carried.append(request.value)
        return request.value

    async def lives(request: Any) -> None:
        if dies:
            raise Killed

    handlers = {carry: perform, live: lives}
    return Workflow(
        TABLE, {"Put": put, "Ask": ask}, held, handlers, home=home, begin=lambda text: held(first, first)
    )


def be_killed(home: str) -> None:
    """Begin a turn for each of the examples, and end as no process wants to."""

    async def begin() -> None:
        for number, (annotation, value) in enumerate(EXAMPLES):
            flow = holding(annotation, value, value, Path(home), [])
            turn = flow.begin("")
            turn.turn_id = f"v-{number}"
            running = flow.start(turn)
            for _ in range(2):  # the move, and the reply
                await running.step_into()

    asyncio.run(begin())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    be_killed(sys.argv[1])
