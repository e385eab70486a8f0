"""Values that are stored are read again as what they were."""

from __future__ import annotations

import json
import typing
from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.conversation.effects import (
    Approval,
    AskApproval,
    CallModel,
    Cancelled,
    CheckSignals,
    ErrorRow,
    Failure,
    ModelRequest,
    Persist,
    Reply,
    Request,
    Runtime,
    RunTool,
    Switched,
    ToolOutcome,
    Waited,
)
from fsm_agent.conversation.messages import Message, ModelReply, ToolCall, Usage
from fsm_agent.fsm.codec import PART, STORED, STORED_AS, assemble, codec_of, dumps, fields_of
from fsm_agent.fsm.journal import Tracker, apply_change, apply_deltas, difference, restore

VALUES: list[Any] = [
    CheckSignals(charge=True),
    CallModel(ModelRequest(b"", stream=False, purpose="summary", estimate=3), 1.5, 2.5, auxiliary=1),
    RunTool("c1", "put", {"a": [1, {"b": None}], "s": "\ud800"}, 3.0, "pure", "key"),
    AskApproval("c1", "put", {}),
]
CALLS = (ToolCall("c", "n", "{}"),)
REPLIES: list[Any] = [
    ModelReply("text", "thought", CALLS, "tool_calls", usage=Usage(1, 2, 3, 4, 5), blocks=({"type": "x"},)),
    Failure("http", "boom", 429, retry_after=0.0, usage=Usage(1)), Cancelled("half"),
    ToolOutcome("c", "unknown", "?", 0.5, ({"type": "image"},)), Approval(True, "yes", "session"),
    Waited(1.0, True),
    Switched(True, Runtime("p", "m", error_rows=(ErrorRow("x", (400,), ("a",), ()),))),
]  # fmt: skip


@pytest.mark.parametrize("value", [*VALUES, *REPLIES], ids=lambda value: type(value).__name__)
def test_requests_and_replies_come_back(value: Any) -> None:
    codec = codec_of(Request if value in VALUES else Reply)
    assert codec.decode(json.loads(dumps(codec.encode(value)))) == value


def test_every_request_and_reply_has_a_codec() -> None:
    for union in (Request, Reply):
        for member in typing.get_args(union):
            assert codec_of(member).frozen


def test_a_message_comes_back_as_a_row() -> None:
    parts = [{"type": "text", "text": "x"}]
    row = Message("tool", parts, tool_call_id="c", name="n", sent="preview", wire=False)
    codec = codec_of(tuple[Message, ...])
    [again] = codec.decode(json.loads(dumps(codec.encode((row,)))))
    assert again.to_dict() == row.to_dict()
    persists = codec_of(Persist)
    assert persists.decode(persists.encode(Persist((row,)))).rows[0].to_dict() == row.to_dict()


def test_what_has_no_codec_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="complex"):
        codec_of(complex)


def test_text_that_is_not_utf8_is_stored_in_ascii() -> None:
    assert dumps({"a": "\ud83dü漢"}).isascii()
    assert json.loads(dumps("\ud83d")) == "\ud83d"


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"x", range(3), Usage], ids=lambda one: type(one).__name__
)
def test_values_outside_json_are_never_stored_as_text(value: Any) -> None:
    assert json.loads(dumps({"a": MappingProxyType({"b": deque([Part(1)])})})) == {
        "a": {"b": [{"number": 1}]}
    }
    with pytest.raises(TypeError, match="is not a JSON value"):
        dumps({"a": [value]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(before=JSON, after=JSON)
def test_a_difference_applied_is_the_value(before: Any, after: Any) -> None:
    kept = json.loads(json.dumps(before))
    change = json.loads(json.dumps(difference(before, after)))
    assert apply_change(before, change) == after
    if isinstance(after, dict) and before != after:
        assert list(apply_change(before, change)) == list(after), "what is remembered longest goes first"
    assert before == kept


def test_a_change_deep_inside_is_all_that_is_written() -> None:
    before = {"counts": {f"call {number}": [number, 1] for number in range(128)}, "other": {"a": 1}}
    newer = {**before["counts"], "new": [0, 1]}
    del newer["call 0"]
    change = difference(before, {**before, "counts": newer})
    assert change == {"set": {}, "gone": [], "in": {"counts": {"set": {"new": [0, 1]}, "gone": ["call 0"]}}}


@dataclass(slots=True)
class Part:
    number: int = 0


@dataclass(slots=True)
class Thing:
    """A turn of another application."""

    name: str = ""
    parts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    part: Part = field(default_factory=Part)
    left_out: object = field(default=None, metadata={"stored": False})


EDITED = st.sampled_from(["name", "parts", "counts", "part", "shorter"])


@given(st.lists(st.tuples(EDITED, st.text(max_size=3), st.integers(0, 9)), max_size=12))
def test_deltas_add_up_to_the_thing(edits: list[tuple[str, str, int]]) -> None:
    thing, deltas = Thing(), []
    tracker = Tracker(thing)
    for what, text, number in edits:
        match what:
            case "name":
                thing.name = text
            case "parts":
                thing.parts.append(text)
            case "counts":
                thing.counts[text] = number
            case "part":
                thing.part.number = number
            case "shorter":
                thing.parts = thing.parts[:-1]
        deltas.append(json.loads(dumps(tracker.delta())))
    assert restore(Thing, apply_deltas(tracker.start, deltas)) == thing
    assert tracker.delta() == {}


@dataclass(slots=True)
class Nest:
    """Whatever can change in place, at any depth."""

    listed: list[Part] = field(default_factory=lambda: [Part()])
    named: dict[str, Part] = field(default_factory=lambda: {"a": Part()})
    paired: tuple[str, Part] = field(default_factory=lambda: ("p", Part()))
    row: tuple[Part, ...] = field(default_factory=lambda: (Part(),))
    maybe: Part | None = field(default_factory=Part)
    either: Part | Thing = field(default_factory=Thing)
    lists: dict[str, list[int]] = field(default_factory=lambda: {"a": [1]})


EDITS: dict[str, Any] = {
    "listed": lambda nest: nest.listed[0], "named": lambda nest: nest.named["a"],
    "paired": lambda nest: nest.paired[1], "row": lambda nest: nest.row[0], "maybe": lambda nest: nest.maybe,
    "either": lambda nest: nest.either.part,
}  # fmt: skip


@pytest.mark.parametrize("name", [*EDITS, "lists"])
def test_what_changes_in_place_is_noticed_at_any_depth(name: str) -> None:
    nest = Nest()
    tracker = Tracker(nest)
    if name == "lists":
        nest.lists["a"].append(2)
    else:
        EDITS[name](nest).number = 1
    deltas = [json.loads(dumps(tracker.delta()))]
    assert restore(Nest, apply_deltas(tracker.start, deltas)) == nest
    assert len(deltas[0]) == 1
    assert tracker.delta() == {}


def test_a_delta_is_as_small_as_the_change() -> None:
    thing = Thing(parts=[f"part {number}" for number in range(5_000)])
    tracker = Tracker(thing)
    thing.parts.append("one more")
    assert tracker.delta() == {"parts": {"kept": 5_000, "added": ["one more"]}}


@dataclass(slots=True)
class Drive:
    speed: int = 0
    gears: list[int] = field(default_factory=list)
    warm: bool = field(default=False, metadata={STORED: False})


@dataclass(slots=True)
class Car:
    """In two parts, which the stored form does not show."""

    name: str
    drive: Drive = field(default_factory=Drive, metadata={PART: True})
    number_of_doors: int = field(default=4, metadata={STORED_AS: "doors"})


def test_parts_are_stored_as_if_they_were_not_there() -> None:
    car = assemble(Car, {"name": "a", "speed": 3, "warm": True, "number_of_doors": 2})
    assert car == Car("a", Drive(3, [], True), 2)
    tracker = Tracker(car)
    assert tracker.start == {"name": "a", "speed": 3, "gears": [], "doors": 2}
    car.drive.gears.append(1)
    car.number_of_doors = 5
    changes = tracker.delta()
    assert changes == {"gears": {"to": [1]}, "doors": {"to": 5}}
    assert restore(Car, apply_deltas(tracker.start, [changes]), warm=True) == car


def test_parts_in_the_field_of_another_dataclass() -> None:
    codec = codec_of(dict[str, Car])
    cars = {"a": Car("a", Drive(1))}
    held = codec.held(cars)
    assert codec.encode(cars) == {"a": {"name": "a", "speed": 1}}
    assert codec.decode(codec.encode(cars)) == held == cars
    cars["a"].drive.gears.append(2)
    assert held != cars


def test_a_dataclass_of_parts_is_made_of_fields_that_it_has() -> None:
    with pytest.raises(TypeError, match="Car has no field 'wings'"):
        assemble(Car, {"name": "a", "wings": 2})
    with pytest.raises(TypeError, match="name"):
        assemble(Car, {"speed": 2})


def test_two_parts_may_not_store_the_same_name() -> None:
    @dataclass
    class Tandem:
        front: Drive = field(default_factory=Drive, metadata={PART: True})
        back: Drive = field(default_factory=Drive, metadata={PART: True})

    with pytest.raises(TypeError, match="gears, speed"):
        fields_of(Tandem)


class Degrees:
    """Says itself how it is coded."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Degrees) and self.value == other.value

    __hash__ = None

    def to_dict(self) -> dict[str, Any]:
        return {"degrees": self.value}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Degrees:
        return cls(row["degrees"])


@dataclass
class Weather:
    outside: Degrees = field(default_factory=lambda: Degrees(20.0))


def test_a_class_may_say_itself_how_it_is_coded() -> None:
    weather = Weather()
    tracker = Tracker(weather)
    weather.outside.value = 25.5
    changes = tracker.delta()
    assert changes == {"outside": {"to": {"degrees": 25.5}}}
    assert restore(Weather, apply_deltas(tracker.start, [changes])) == weather
