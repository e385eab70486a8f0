"""The values of a custom table's turn come back unchanged: after a kill, in a fork, in another home. A value
that cannot is refused, by name."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime as dt
import json
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm_agent import BaseTurn, Workflow
from fsm_agent.errors import ConfigError, UndeclaredEvent
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.journal import is_kept_as, request_record
from fsm_agent.fsm.values import from_json, to_json
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_turn
from fsm_agent.sessions.store.importing import import_lines
from tests.helpers.processes import ran
from tests.helpers.sample import most
from tests.helpers.stored_values import (
    EXAMPLES,
    KINDS,
    TABLE,
    Car,
    Drive,
    Item,
    Model,
    Word,
    holding,
    identical,
)

ROOT = Path(__file__).parents[2]
ENGINES = {one.name for one in dataclasses.fields(BaseTurn)}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    """One to run turns in, and one to import them into."""
    made = [Store(tmp_path_factory.mktemp(name), "normal") for name in ("here", "there")]
    yield made[0], made[1]
    for store in made:
        store.close()


def comes_back(annotation: Any, first: Any, later: Any, stores: tuple[Store, Store]) -> None:
    """By resuming, by a fork, and by a file."""
    here, there = stores
    carried: list[Any] = []
    flow = holding(annotation, first, later, here.home, carried)
    dying = holding(annotation, first, later, here.home, [], dies=True)
    flow.store = dying.store = here
    begun = dying.start(dying.begin(""))
    with pytest.raises(UndeclaredEvent, match="Killed"):
        begun.run()
    lines = list(export_turn(here.database, begun.id, raw=True))
    resumed = flow.resume(begun.id).run()
    assert carried == [], "the request is known again, and so is its reply"
    forked = flow.fork(begun.id, 1).run()
    import_lines(there, lines)
    elsewhere = holding(annotation, first, later, there.home, carried)
    elsewhere.store = there
    imported = elsewhere.resume(begun.id).run()
    # what a file says of a reply is not believed: the request says itself what it is in doubt
    for turn, got in ((resumed.turn, later), (forked.turn, later), (imported.turn, first)):
        assert identical(turn.first, first)
        assert identical(turn.later, later)
        assert identical(turn.got, got)
    assert len(carried) == 1, "an unsafe request of a file is in doubt"


@settings(max_examples=settings.get_profile("brief").max_examples)
@given(data=st.data())
def test_values_come_back_as_they_went(data: st.DataObject, stores: tuple[Store, Store]) -> None:
    kind = data.draw(KINDS)
    comes_back(kind.annotation, data.draw(kind.values), data.draw(kind.values), stores)


@pytest.mark.slow
@settings(max_examples=most(2_000))
@given(data=st.data())
def test_two_thousand_values_come_back_as_they_went(data: st.DataObject, stores: tuple[Store, Store]) -> None:
    kind = data.draw(KINDS)
    comes_back(kind.annotation, data.draw(kind.values), data.draw(kind.values), stores)


@pytest.mark.slow
def test_a_value_of_each_kind_comes_back_after_kill_9(tmp_path: Path) -> None:
    assert ran("-m", "tests.helpers.stored_values", tmp_path, cwd=ROOT).returncode == -signal.SIGKILL
    with closing(Store(tmp_path)) as store:
        for number, (annotation, value) in enumerate(EXAMPLES):
            flow = holding(annotation, value, value, tmp_path, carried := [])
            flow.store = store
            turn = flow.resume(f"v-{number}").run().turn
            assert carried == [], annotation
            assert identical([turn.first, turn.later, turn.got], [value] * 3), annotation


# Changes in place


@dataclass
class Changing(BaseTurn):
    names: set[str] = field(default_factory=set)
    items: list[Item] = field(default_factory=lambda: [Item("a")])
    model: Model = field(default_factory=Model)
    car: Car = field(default_factory=lambda: Car("a"))
    flag: int = 0
    marks: list[int] = field(default_factory=lambda: [1, 1])
    price: Decimal = Decimal("1.1")
    json: Any = field(default_factory=lambda: {"a": [1]})
    plain: list = field(default_factory=list)  # type: ignore[type-arg]


def _unequal(turn: Changing) -> None:
    turn.car.warm = True  # which == does not look at


CHANGES: dict[str, Callable[[Changing], object]] = {
    "a set": lambda turn: turn.names.add("x"),
    "an item of a list": lambda turn: turn.items[0].tags.add(Word.YES),
    "a model": lambda turn: setattr(turn.model, "count", 9),
    "a private attribute": lambda turn: turn.model.see(1),
    "what is not compared": _unequal,
    "0 to False": lambda turn: setattr(turn, "flag", False),
    "1 to True in a list": lambda turn: setattr(turn, "marks", [1, True]),
    "1.1 to 1.10": lambda turn: setattr(turn, "price", Decimal("1.10")),
    "JSON": lambda turn: turn.json["a"].append({"set": 1}),
    "a list of no type": lambda turn: turn.plain.append(None),
}


def flow_of(put: Callable[[Any], object], turn: Any, home: Path, ask: Any = None) -> Workflow[Any]:
    """A turn whose first state does ``put`` to it."""

    def state(turn: Any) -> Generator[Any, Any, str]:
        yield from ()
        put(turn)
        return "put"

    def asks(turn: Any) -> Generator[Any, Any, str]:
        yield from (() if ask is None else (ask,))
        return "got"

    return Workflow(TABLE, {"Put": state, "Ask": asks}, turn, answered, home=home)


def nothing(turn: Any) -> Generator[Any, Any, str]:
    yield from ()
    return "put"


async def answered(request: Any) -> Any:
    return None


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_in_place_is_written(name: str, tmp_path: Path) -> None:
    change = CHANGES[name]
    flow = flow_of(change, Changing, tmp_path)
    begun = flow.start(Changing())
    asyncio.run(begun.step())
    changed = Changing()
    change(changed)
    turn = flow.resume(begun.id).run().turn
    fields = [one.name for one in dataclasses.fields(Changing) if one.name not in ENGINES]
    assert identical([getattr(turn, one) for one in fields], [getattr(changed, one) for one in fields])


def test_a_move_writes_what_changed_and_no_more(tmp_path: Path) -> None:
    flow = flow_of(lambda turn: turn.plain.append(2), Changing, tmp_path)
    begun = flow.start(Changing(plain=[{"n": number} for number in range(100)]))
    asyncio.run(begun.step())
    with flow.store.database.reading() as c:
        [(delta,)] = c.execute("SELECT delta FROM transitions").fetchall()
    assert json.loads(delta) == {"plain": {"kept": 100, "added": [2]}, "state": "Ask", "seq": 1}


# What cannot be stored is refused when the workflow is made


class Thing:
    """A class like any other."""


@dataclass
class Deep:
    name: str
    thing: Thing


@dataclass
class Needs:
    name: str
    size: InitVar[int]


ALLOWED = "None, bool, int, float, complex, str, bytes"
REFUSED: list[tuple[Any, str]] = [
    (Thing, "Thing"), (threading.Lock, threading.Lock.__name__), (logging.Logger, "Logger"),
    (Callable[[int], str], "Callable[[int], str]"),
    (Generator[int, None, None], "Generator[int, None, None]"), (type[int], "type[int]"),
    (collections.defaultdict[str, int], "defaultdict[str, int]"), (pydantic.SecretStr, "SecretStr"),
    (pydantic.BaseModel, "BaseModel"), (dict[str, list[Thing]], "dict[str, list[Thing]]): Thing"),
    (list[Deep], "list[Deep]): Deep.thing (Thing)"),
    (Needs | None, "Needs.size, which is not stored and has no default,"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "said"), REFUSED, ids=lambda one: str(one)[:20])
def test_a_field_that_cannot_be_stored_is_refused_by_name(annotation: Any, said: str, tmp_path: Path) -> None:
    turn: Any = dataclasses.make_dataclass("Parcel", [("held", annotation, None)], bases=(BaseTurn,))
    with pytest.raises(ConfigError) as refused:
        flow_of(lambda turn: None, turn, tmp_path)
    line = str(refused.value)
    assert line.startswith("Parcel cannot be stored; given: Parcel.held (")
    assert said in line
    assert f"allowed: {ALLOWED}" in line
    assert 'metadata={"stored": False} and a default' in line
    assert "\n" not in line


def test_a_field_that_is_not_stored_may_be_anything_with_a_default(tmp_path: Path) -> None:
    class_of = partial(dataclasses.make_dataclass, "Parcel", bases=(BaseTurn,))
    unstored = {"stored": False}
    kept = class_of([("lock", Any, field(default_factory=threading.Lock, metadata=unstored))])
    flow_of(lambda turn: None, kept, tmp_path)
    with pytest.raises(ConfigError, match=r"given: Parcel\.lock, which is not stored and has no default"):
        flow_of(lambda turn: None, class_of([("lock", Any, field(metadata=unstored))]), tmp_path)


@pytest.mark.parametrize(("name", "members", "said"), [
    ("AskFor", [("held", Thing)], "request AskFor cannot be stored; given: AskFor.held (Thing); allowed: None"),
    ("AskFor", {"reply": Thing}, "the reply to AskFor cannot be stored; given: Thing; allowed: None"),
    ("AskFor", {"reply": list[Deep]}, "the reply to AskFor cannot be stored; given: Deep.thing (Thing)"),
    ("AskFor", {"effect": "unsfae"}, "AskFor has no such effect; given: unsfae; allowed: pure, idempotent, unsafe"),
    ("AskFor", {"effect": "unsafe"}, "AskFor is unsafe, and its reply after a crash is not declared; allowed: reply"),
])  # fmt: skip
def test_a_request_that_cannot_be_stored_is_refused(
    name: str, members: Any, said: str, tmp_path: Path
) -> None:
    fields, namespace = (members, {}) if isinstance(members, list) else ([], members)
    request = dataclasses.make_dataclass(name, fields, namespace=namespace)
    with pytest.raises(ConfigError) as refused:
        Workflow(TABLE, {"Put": nothing, "Ask": nothing}, BaseTurn, {request: answered}, home=tmp_path)
    assert str(refused.value).startswith(said)


# What older versions wrote


@dataclass
class Parts:
    either: Item | Car = field(default_factory=Item)
    rows: tuple[Item, ...] = ()
    pairs: dict[int, Item] = field(default_factory=dict)
    words: Sequence[str] = ()
    maybe: list[int] | None = None
    word: Word = Word.NO


OLD = [
    Parts(Item("a"), (Item("b"),), {1: Item()}, ("c",), [1], Word.YES),
    Parts(Car("a", Drive(3, [])), words=("c", "d")),
]


@pytest.mark.parametrize("value", OLD)
def test_what_older_versions_stored_is_read(value: Parts) -> None:
    """They left out what was at its default."""
    kept = {"either": {"is": type(value.either).__name__, "name": "a"}, "words": list(value.words)}
    if isinstance(value.either, Car):
        kept["either"] |= {"speed": 3}
    else:
        kept |= {"rows": [{"name": "b"}], "pairs": {"1": {}}, "maybe": [1], "word": "yes"}
    assert identical(from_json(Parts, kept), value)
    assert identical(from_json(Parts, json.loads(dumps(to_json(value)))), value)


def test_a_request_is_known_again_as_it_is_kept_and_as_older_versions_kept_it() -> None:
    @dataclass
    class Send:
        to: set[str]
        item: Item | None = None

    names = set(map(str, range(99)))
    assert request_record(Send(names)) == {"is": "Send", "to": sorted(names), "item": None}
    old = {
        "is": "Send", "to": ["a"], "item": {"is": "Item", "name": "b", "due": "c", "price": None, "tags": []},
    }  # fmt: skip
    assert is_kept_as(Send({"a"}, Item("b", "c")), old)
    assert not is_kept_as(Send({"a"}, Item("b", "d")), old)


# What a field does not allow is refused when it is written


JSON_ALONE = (
    "allowed: JSON values: None, bool, int, float, str, list, dict with str keys; or another annotation"
)


@dataclass
class Loose(BaseTurn):
    any: Any = None
    named: dict[str, Any] = field(default_factory=dict)
    item: Item | None = None
    always: Item = field(default_factory=Item)
    size: int = 0
    word: str = ""


LOOSE: list[tuple[str, Any, str]] = [
    ("any", Item("a"), "Loose.any cannot be stored; given: Item Item(name='a'"),
    ("any", {"a": [1, dt.date(2026, 1, 1)]}, "Loose.any['a'][1] cannot be stored; given: date datetime.date(2026, 1, 1)"),
    ("any", (1, 2), f"Loose.any cannot be stored; given: tuple (1, 2); {JSON_ALONE}"),
    ("any", {1: 2}, f"Loose.any (a key) cannot be stored; given: int 1; {JSON_ALONE}"),
    ("any", float("nan"), f"Loose.any cannot be stored; given: float nan; {JSON_ALONE}"),
    ("any", ["\ud800\udc00"], "Loose.any[0] cannot be stored; given: str '\\ud800\\udc00'; allowed: JSON values"),
    ("named", {"\ud800\udc00": 1}, "Loose.named['\\ud800\\udc00'] cannot be stored; given: str"),
    ("any", len, "Loose.any cannot be stored; given: builtin_function_or_method"),
    ("named", {"a": {"b": {1}}}, f"Loose.named['a']['b'] cannot be stored; given: set {{1}}; {JSON_ALONE}"),
    ("item", "a", "Loose.item cannot be stored; given: str 'a'; allowed: Item"),
    ("always", None, "Loose.always cannot be stored; given: None; allowed: Item"),
    ("always", Item(3), "Loose.always.name cannot be stored; given: int 3; allowed: str"),
    ("size", "3", "Loose.size cannot be stored; given: str '3'; allowed: int"),
    ("word", Word.YES, "Loose.word cannot be stored; given: Word <Word.YES: 'yes'>; allowed: str"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "said"), LOOSE, ids=lambda one: str(one)[:20])
def test_a_value_that_cannot_be_stored_is_refused_at_the_move(
    name: str, value: Any, said: str, tmp_path: Path
) -> None:
    flow = flow_of(lambda turn: setattr(turn, name, value), Loose, tmp_path)
    begun = flow.start(Loose(word="before"))
    with pytest.raises(ConfigError) as refused:
        begun.run()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    mended = flow_of(lambda turn: setattr(turn, "word", "after"), Loose, tmp_path).resume(begun.id).run()
    assert (mended.exit, mended.turn.word, mended.turn.any) == ("held", "after", None)
    with pytest.raises(ConfigError) as first:
        flow.start(Loose(**{name: value}))
    assert str(first.value).startswith(said), "and before anything is done"


def test_a_value_that_was_refused_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """What was put into other fields before is written when the value is mended, as a debugger does it."""

    def put(turn: Loose) -> None:
        turn.size, turn.word, turn.any = 3, "three", (3,)

    flow = flow_of(put, Loose, tmp_path)
    turn = Loose()
    begun = flow.start(turn)
    with pytest.raises(ConfigError, match=r"Loose\.any"):
        begun.run()
    turn.any = [3]
    begun.run()
    assert flow.journal.snapshot(begun.id, 1)["size"] == 3
    assert flow.journal.snapshot(begun.id, 1)["word"] == "three"


def test_an_attribute_that_is_not_a_field_is_not_forgotten(tmp_path: Path) -> None:
    begun = flow_of(lambda turn: setattr(turn, "wrod", "x"), Loose, tmp_path).start(Loose())
    with pytest.raises(
        ConfigError, match="Loose has no such field; given: wrod; allowed: word, perhaps; all of"
    ):
        begun.run()


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    round_: list[Any] = []
    round_.append(round_)
    with pytest.raises(ConfigError, match=r"Loose\.any cannot be stored; given: list; allowed: a value that"):
        flow_of(lambda turn: None, Loose, tmp_path).start(Loose(any=round_))


def test_a_fork_with_a_value_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    flow = flow_of(lambda turn: None, Loose, tmp_path)
    ended = flow.start(Loose()).run()
    with pytest.raises(ConfigError, match=r"Loose\.size cannot be stored; given: str 'x'; allowed: int"):
        flow.fork(ended.turn_id, 1, {"fields": {"size": "x"}})
    forked = flow.fork(ended.turn_id, 1, {"fields": {"item": {"name": "by hand", "tags": ["yes"]}}}).run()
    assert forked.turn.item == Item("by hand", tags={Word.YES})
