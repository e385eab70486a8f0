"""From the text of a model to a value of a type, without any turn; and what type checkers make of typed
agents."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, field_validator
from typing_extensions import TypedDict

from fsm_agent import RunContext
from fsm_agent.composition.model_caller import PartialObjects
from fsm_agent.conversation.effects import NOTHING, OutputSpec
from fsm_agent.errors import ConfigError
from fsm_agent.options import TurnArguments
from fsm_agent.output import JsonSchema, OutputType
from fsm_agent.tools import ToolFailure


class City(BaseModel):
    name: str
    people: int = Field(default=3, ge=0)


@dataclass
class Town:
    title: str


class Found(TypedDict, total=False):
    cities: list[City]
    note: str


class Node(BaseModel):
    value: int
    below: list[Node] = []


class Odd(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def looked_up(cls, value: int) -> int:
        return {1: 1}[value]  # a KeyError is not a ValueError


def order(item: str, number: int = 1) -> tuple[str, int]:
    """Order something."""
    if number < 1:
        raise ValueError("at least one")
    return item, number


async def perform(tool: Any, arguments: Any) -> Any:
    try:
        return tool.handler(**arguments)
    except ValueError as error:
        raise ToolFailure(str(error)) from None


def value_of(kind: Any, text: str) -> Any:
    wanted = OutputType[Any](kind)
    return asyncio.run(wanted.finish(wanted.read(text), perform)).value


FITTING = (
    (City, '{"name": "Bern"}', City(name="Bern")),
    (City, 'Here it is:\n```json\n{"name": "Bern"}\n```\nAnything else?', City(name="Bern")),
    (City, '```\n{"name": "Basel"}\n```\n or rather\n```\n{"name": "Bern"}\n```', City(name="Bern")),
    (City, "{'name': 'Bern',}", City(name="Bern")), (Town, '{"title": "Thun"}', Town("Thun")),
    (City | Town, '{"result": {"title": "Thun"}}', Town("Thun")),
    (City | Town, '{"name": "Bern"}', City(name="Bern")),
    (Found, '{"cities": [{"name": "Bern"}]}', {"cities": [City(name="Bern")]}),
    (Node, '{"value": 1, "below": [{"value": 2}]}', Node(value=1, below=[Node(value=2)])),
    (list[str], '["a", "b"]', ["a", "b"]), (list[str], '{"result": ["a"]}', ["a"]), (int, "42", 42),
    (bool, '{"result": true}', True), (Literal["good", "bad"], "good", "good"),
    (City | str, "no city at all", "no city at all"), (dict[str, int], '{"result": 1}', {"result": 1}),
    (order, '{"item": "tea", "number": 2}', ("tea", 2)),
    (JsonSchema({"type": "object", "required": ["a"]}), '{"a": [1]}', {"a": [1]}),
    (JsonSchema({"enum": [1, 2]}), "2", 2),
)  # fmt: skip


def test_what_fits_becomes_a_value() -> None:
    for kind, text, value in FITTING:
        assert value_of(kind, text) == value, (kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (City, "Bern", "it is not JSON"),
        (City, '{"name": "Be', "it is not JSON"),
        (City, "{}", "name: missing, and required"),
        (City, '{"name": "Bern", "people": -1}',
         "people: Input should be greater than or equal to 0; given: -1"),
        (City, "[1]", "the answer: Input should be"),
        (list[int], '["x"]', "valid integer"),
        (bool, '"perhaps"', "valid boolean"),
        (list[float], "[1e999]", "valid array; given"),
        (Odd, '{"value": 2}', "KeyError"),
        (order, '{"item": "tea", "number": 0}', "at least one"),
        (order, '{"number": 1}', "item: missing, and required"),
        (order, "[]", "has to be a JSON object"),
        (JsonSchema({"type": "object", "required": ["a"]}), "{}", "'a' is a required property"),
        (JsonSchema({"type": "array", "items": {"type": "integer"}}), '["x"]', "is not of type 'integer'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_words_for_the_model(kind: Any, text: str, words: str) -> None:
    with pytest.raises(ToolFailure, match=words.replace("(", r"\(")):
        value_of(kind, text)


def test_what_is_stored_of_an_answer_is_its_json_and_can_be_read_again() -> None:
    wanted = OutputType[Any](list[str])
    for text in ('["a"]', '{"result": ["a"]}', 'so:\n```json\n["a"]\n```'):
        stored = wanted.read(text).text
        assert stored == '["a"]'
        assert wanted.read(stored).value == ["a"]
    assert OutputType[Any](Literal["good", "bad"]).read("good").text == '"good"'


class Unusable:
    pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Unusable, "output_type yields no schema"), (lambda: 3, "a tool's name cannot be used"),
        ("City", "output_type yields no schema"), (3, "output_type yields no schema"),
        (Callable[[int], int], "output_type yields no schema"),
    ],
)  # fmt: skip
def test_a_type_without_a_schema_is_refused_in_one_line(kind: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        OutputType(kind)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("schema", [{"type": "cty"}, {"properties": 3}, "x", ["object"]])
def test_an_invalid_json_schema_is_refused_in_one_line(schema: Any) -> None:
    with pytest.raises(ConfigError, match="not a JSON schema") as refused:
        JsonSchema(schema)
    assert "\n" not in str(refused.value)


def test_a_schema_that_is_too_deep_or_refers_to_itself_alone_is_an_answer_in_words() -> None:
    deep: Any = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigError, match="nested too deeply"):
        JsonSchema(deep)
    with pytest.raises(ToolFailure, match="the schema refers to itself alone"):
        value_of(JsonSchema({"type": "object", "allOf": [{"$ref": "#"}]}), "{}")


def test_a_schema_fetches_nothing() -> None:
    schema = JsonSchema({"$ref": "http://127.0.0.1:1/other.json"})
    with pytest.raises(ToolFailure, match="Unresolvable"):
        value_of(schema, "1")


def test_the_root_of_what_is_asked_for_is_an_object() -> None:
    for kind in (City, City | Town, Node, list[int], int, Found, order, JsonSchema({"enum": [1]})):
        spec = OutputType[Any](kind).spec
        assert isinstance(spec, OutputSpec)
        assert spec.schema["type"] == "object"
        assert "$ref" not in spec.schema
        assert OutputType[Any](kind).final_tool.parameters == spec.schema


def test_a_context_is_not_part_of_the_schema() -> None:
    def pick(context: RunContext[int], name: str) -> str:
        """Pick a name."""
        return name

    assert list(OutputType[Any](pick).spec.schema["properties"]) == ["name"]
    with pytest.raises(ConfigError, match="output function 'pick' needs deps"):
        OutputType[Any](pick).refuse_without(None)


def told_of(kind: OutputType[Any], text: str, size: int = 1) -> list[Any]:
    told: list[Any] = []
    partial = PartialObjects(kind.partial, told.append, NOTHING)
    for start in range(0, len(text), size):
        partial.feed(text[start : start + size])
    partial.end()
    return told


def test_objects_grow_while_they_are_written() -> None:
    told = told_of(OutputType(list[str]), json.dumps(["a long first part of it " * 3, "second " * 20]))
    assert told[-1] == ["a long first part of it " * 3, "second " * 20]
    assert len(told) > 3
    for before, after in pairwise(told):
        assert str(after).startswith(str(before).rstrip("']"))


def test_a_model_is_streamed_once_its_required_fields_are_there() -> None:
    told = told_of(OutputType(City), '{"name": "Bern", "people": 144000}', size=4)
    assert told[-1] == City(name="Bern", people=144000)
    assert all(isinstance(one, City) for one in told)


@pytest.fixture(scope="module")
def five() -> list[OutputType[Any]]:
    return [OutputType(kind) for kind in (City, list[str], Found, order, JsonSchema({}))]


@given(text=st.text(), size=st.integers(1, 9))
def test_no_text_makes_a_partial_object_fail(five: list[OutputType[Any]], text: str, size: int) -> None:
    for kind in five:
        told_of(kind, text, size)


def test_reading_costs_a_few_times_the_length() -> None:
    read: list[int] = []
    partial = PartialObjects(lambda text: read.append(len(text)), lambda found: None, NOTHING)
    for _ in range(50_000):
        partial.feed("12345")
    partial.end()
    assert sum(read) < 7 * 250_000


Kind = tuple[Any, st.SearchStrategy[Any]]
LEAVES: list[Kind] = [
    (int, st.integers(-(2**60), 2**60)), (str, st.text()), (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)), (type(None), st.none()),
]  # fmt: skip


def grown(kind: Kind) -> st.SearchStrategy[Kind]:
    inner: Any
    inner, values = kind
    return st.sampled_from(
        [
            (list[inner], st.lists(values, max_size=3)),
            (dict[str, inner], st.dictionaries(st.text(), values, max_size=3)),
            (inner | None, st.none() | values),
            (TypedDict("Held", {"one": inner}), st.fixed_dictionaries({"one": values})),
        ]
    )


KINDS = st.recursive(st.sampled_from(LEAVES), lambda kinds: kinds.flatmap(grown), max_leaves=4)


@given(KINDS, st.data())
def test_each_value_of_a_type_is_accepted(kind: Kind, data: st.DataObject) -> None:
    wanted, values = kind
    value = data.draw(values)
    output = OutputType[Any](wanted)
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    assume(not re.search("[\ud800-\udfff]", str(value)))
    wrapped = list(output.spec.schema.get("properties", ())) == ["result"]
    for said in (text, f"```json\n{text}\n```", json.dumps({"result": value}) if wrapped else text):
        read = output.read(said)
        assert read.value == value
        assert output.read(read.text).value == value


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(KINDS, JSON.map(json.dumps) | st.text())
def test_no_reply_is_more_than_refused(kind: Kind, text: str) -> None:
    wanted, _ = kind
    try:
        value = OutputType[Any](wanted).read(text).value
    except ToolFailure as refused:
        words = str(refused)
    else:
        words = "it fits"
        TypeAdapter(wanted).dump_python(value, warnings="error")
    assert words


ROOT = Path(__file__).parents[2]
RIGHT = """
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from typing_extensions import TypedDict, assert_type

from fsm_agent import Agent, RunContext, Turn, TurnResult, tool
from fsm_agent.output import JsonSchema


class City(BaseModel):
    name: str


@dataclass
class Town:
    title: str


class Found(TypedDict):
    cities: list[City]


class Db:
    pass


def pick(context: RunContext[Db], name: str) -> City:
    assert_type(context.deps, Db)
    return City(name=name)


async def choose(name: str) -> Town:
    return Town(name)


@tool
def look(context: RunContext[Db], name: str) -> str:
    return name


assert_type(Agent(), Agent[Any, str])
assert_type(Agent("offline:demo", tools=[look]).run_conversation("x").output, str | None)
assert_type(Agent(output_type=City).run_conversation("x").output, City | None)
assert_type(Agent(output_type=Town).run_conversation("x").output, Town | None)
assert_type(Agent(output_type=Found).run_conversation("x").output, Found | None)
assert_type(Agent(output_type=City | Town).run_conversation("x").output, City | Town | None)
assert_type(Agent(output_type=list[str]).run_conversation("x").output, list[str] | None)
assert_type(Agent(output_type=int).run_conversation("x").output, int | None)
assert_type(Agent(output_type=bool).run_conversation("x").output, bool | None)
assert_type(Agent(output_type=pick).run_conversation("x").output, City | None)
assert_type(Agent(output_type=choose).run_conversation("x").output, Town | None)
assert_type(Agent(output_type=JsonSchema({})).run_conversation("x").output, Any | None)

agent = Agent[Db, City](output_type=City, tools=[look])
assert_type(agent.start("x", deps=Db()), Turn[City])
assert_type(agent.run_conversation("x", deps=Db()), TurnResult[City])
assert_type(agent.chat("x", deps=Db()), str)
assert_type(agent.resume("t", deps=Db()), Turn[City])
assert_type(agent.run_conversation("x", output_type=Town).output, Town | None)
assert_type(agent.run_conversation("x", output_type=City | Town).output, City | Town | None)
assert_type(agent.start("x", output_type=choose, deps=Db()), Turn[Town])
assert_type(agent.start("x", output_type=pick, task_id="t"), Turn[City])


async def main() -> None:
    assert_type((await agent.arun("x")).output, City | None)
    assert_type((await agent.arun("x", output_type=list[int])).output, list[int] | None)
"""
WRONG = """
from pydantic import BaseModel

from fsm_agent import Agent


class City(BaseModel):
    name: str


agent: Agent[int, City] = Agent(output_type=City)
name: int = agent.run_conversation("x").output  # 1
agent.run_conversation("x", deps="y")  # 2
agent.start("x", output_type=City, deps="y")  # 3
Agent(output_type=City, tols=[])  # 4
other: Agent[int, str] = Agent[int, City](output_type=City)  # 5
agent.run_conversation("x", output_type=City).output.title  # 6
"""


def marked(program: str) -> set[int]:
    return {number for number, line in enumerate(program.splitlines(), 1) if "  # " in line}


def complaints(command: list[str], program: str, folder: Path) -> set[int]:
    """The lines of the program that the checker complains about."""
    file = folder / "program.py"
    file.write_text(program)
    done = subprocess.run([*command, str(file)], cwd=folder, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "error" in line and "program.py:" in line]
    return {int(line.split("program.py:")[1].split(":")[0]) for line in lines}


def mypy(folder: Path) -> list[str]:
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT}:{ROOT / 'states'}\n")
    return [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(folder / "cache")]


def pyright(folder: Path) -> list[str]:
    paths = f'["{ROOT}", "{ROOT / "states"}"]'
    (folder / "pyrightconfig.json").write_text(
        f'{{"typeCheckingMode": "strict", "extraPaths": {paths}, "reportUnusedExpression": false,'
        ' "reportMissingModuleSource": false}'
    )
    return [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]


def needs_node() -> None:
    """Pyright needs Node.js; if it is missing, the package tries to download it."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pyright", "--version"], capture_output=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        pytest.skip("PYRIGHT IS NOT RUN: it could not be got ready in two minutes")
    if done.returncode or shutil.which("node") is None:
        pytest.skip(f"PYRIGHT IS NOT RUN, it needs node: {done.stderr.decode()[-300:]}")


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_checkers_know_what_an_answer_is(checker: object, tmp_path: Path) -> None:
    if checker is pyright:
        needs_node()
    command = mypy(tmp_path) if checker is mypy else pyright(tmp_path)
    assert complaints(command, RIGHT, tmp_path) == set()
    assert complaints(command, WRONG, tmp_path) == marked(WRONG)


def test_type_checkers_see_the_real_arguments() -> None:
    import inspect

    from fsm_agent.composition.turns import AgentTurns

    of_the_engine = {"turn_id", "handoffs", "begins", "trace"}
    started = set(inspect.signature(AgentTurns.start).parameters) - of_the_engine
    assert {"self", "user_message", "output_type", *TurnArguments.__annotations__} == started
