"""Tool calls as models write them: names, and arguments: parsing, coercion, paths."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fsm_agent.conversation.arguments import coerce, parse, paths_conflict, repair_name

JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
JSON_OBJECTS = st.dictionaries(st.text(), JSON_VALUES, max_size=4)
JSON_LIKE = st.text(alphabet="{}[]\"':,\\ \n`ab1-.eTrunullNoeFalsj", max_size=60)


@pytest.mark.parametrize("text", ["", None, "   ", "\n\t", "\ufeff"])
def test_nothing_means_no_arguments(text: str | None) -> None:
    parsed = parse(text)
    assert (parsed.kind, parsed.value, parsed.repaired) == ("ok", {}, False)


@pytest.mark.parametrize("text", ["[1,2]", "[1,2,]", "3", "null", "true", '"plain"', '"[1]"', "[{}]"])
def test_other_json_is_not_an_object(text: str) -> None:
    parsed = parse(text)
    assert (parsed.kind, parsed.value) == ("not_object", None)
    assert "must be a JSON object" in parsed.error


def test_an_object_inside_a_string_is_unwrapped() -> None:
    parsed = parse(json.dumps('{"a": [1, "}"]}'))
    assert (parsed.kind, parsed.value, parsed.repaired) == ("ok", {"a": [1, "}"]}, True)


SLIPS = (
    ('{"a": [1,2}', {"a": [1, 2]}), ('{"a": [{"b": 1], "c": 2}', {"a": [{"b": 1}], "c": 2}),
    ('{"a": {"b": [1, {"c": [2}]}}', {"a": {"b": [1, {"c": [2]}]}}),
    ('{"a": "]}", "b": [1}', {"a": "]}", "b": [1]}), ('{"a": 1,}', {"a": 1}),
    ('{"a": [1, 2, ], }', {"a": [1, 2]}),
    ("{'a': 'b', 'c': True, 'd': None, 'e': False}", {"a": "b", "c": True, "d": None, "e": False}),
    ("{'a': 'say \"hi\"'}", {"a": 'say "hi"'}), ('{"a": "it\\\'s"}', {"a": "it's"}),
    ('{"a": "two\nlines\tand tab"}', {"a": "two\nlines\tand tab"}), ('```json\n{"a": 1}\n```', {"a": 1}),
    ('```\n{"a": 1,}\n```', {"a": 1}), ('{"a": {"b": 1}}}', {"a": {"b": 1}}),
    ('{"a": "\\u00e9\\ud83d\\ude00",}', {"a": "é😀"}), ('{"a": -1.5e3,}', {"a": -1500.0}),
)  # fmt: skip


@pytest.mark.behaviour("EXEC-11")
def test_common_slips_are_repaired() -> None:
    for text, value in SLIPS:
        parsed = parse(text)
        assert (parsed.kind, parsed.value, parsed.repaired) == ("ok", value, True), parsed


HALVES = (
    '{"a": 1', '{"a": "b', '{"a": "b}', '{"code": "if (x) { y(); }', "{'a': 'b}", '{"a": [1, 2]',
    '{"a": {"b": 1}', '{"a', "{", '{"a": "x\\', '{"a": "\\u00}', "NOTJSON", '```json\n{"a": 1',
)  # fmt: skip


@pytest.mark.behaviour("RESP-09")
def test_what_may_be_half_is_cut() -> None:
    for text in HALVES:
        parsed = parse(text)
        assert parsed.kind == "cut", text
        assert parsed.error, text


def test_a_call_that_lacks_only_closers_keeps_its_value_for_who_knows_better() -> None:
    assert parse('{"a": [{"b": 1}').value == {"a": [{"b": 1}]}
    assert parse('{"a": {"b": "x}').value is None


DAMAGE = (
    "{nope}", '{"a": nope}', "{a: 1}", '{"a" 1}', '{"a": 1 "b": 2}', '{"a": 1}{"b": 2}', '{"a": NaN}',
    '{"a": 1e999}', '{"a": 01}', '{"a": +1}', '{"a": "\\d"}', '[1,,2] {"a": 1}', '{"a": "x, "b": 2}',
    "{'a': 'it's'}", 'Sure! {"a": 1}', '{"a": ' + "9" * 5000 + "}", "{" + '"a":{' * 50_000 + "}" * 50_001,
    "[" * 50_000 + "]" * 50_000,
)  # fmt: skip


def test_damage_is_bad_and_says_where() -> None:
    for text in DAMAGE:
        parsed = parse(text)
        assert (parsed.kind, parsed.value) == ("bad", None), text
        assert 0 < len(parsed.error) < 150, text


def test_the_error_names_the_place() -> None:
    assert parse('{"a": 1,\n "b": nope}').error == (
        "expected a value (text needs quotes) at line 2 column 7, found 'nope}'"
    )


@given(JSON_OBJECTS, st.booleans(), st.sampled_from([None, 2]))
def test_every_object_roundtrips(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    parsed = parse(json.dumps(value, ensure_ascii=ascii_only, indent=indent))
    assert (parsed.kind, parsed.repaired) == ("ok", False)
    assert parsed.value == value


@given(JSON_OBJECTS, st.data())
@example({"a": {"b": 1}, "c": 2}, None)
def test_a_prefix_is_never_taken_for_the_whole(value: dict[str, Any], data: st.DataObject | None) -> None:
    text = json.dumps(value, ensure_ascii=False)
    for end in range(1, len(text)) if data is None else [data.draw(st.integers(1, len(text)))]:
        parsed = parse(text[:end])
        assert parsed.kind == "cut" if end < len(text) else parsed.value == value


@given(JSON_OBJECTS)
def test_the_tolerant_reader_agrees_with_the_strict_one(value: dict[str, Any]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assume(value)
    parsed = parse(text[:-1] + ",}")
    assert (parsed.kind, parsed.value) == ("ok", value)


@pytest.mark.behaviour("EXEC-11")
@given(st.text() | JSON_LIKE | JSON_LIKE.map(lambda text: "{" + text + "}"))
def test_no_text_makes_it_raise(text: str) -> None:
    parsed = parse(text)
    assert (parsed.kind == "ok") == (parsed.error == "")
    if parsed.kind == "ok":
        json.dumps(parsed.value, allow_nan=False)


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


INTEGER, NUMBER, BOOLEAN, STRING = ({"type": name} for name in ("integer", "number", "boolean", "string"))
STRINGS = {"type": "array", "items": STRING}


@pytest.mark.behaviour("EXEC-15")
def test_coercion() -> None:
    for text, wanted, result in [
        ("42", INTEGER, 42),
        (" -7 ", INTEGER, -7),
        ("3.0", INTEGER, 3),
        (3.0, INTEGER, 3),
        ("3.5", INTEGER, "3.5"),
        ("1e3", INTEGER, "1e3"),
        ("12345678901234567890", INTEGER, 12345678901234567890),
        ("x", INTEGER, "x"),
        (True, INTEGER, True),
        ("42", NUMBER, 42),
        ("2.50", NUMBER, 2.5),
        ("1e400", NUMBER, "1e400"),
        ("nan", NUMBER, "nan"),
        ("true", BOOLEAN, True),
        ("False", BOOLEAN, False),
        ("yes", BOOLEAN, "yes"),
        (1, BOOLEAN, 1),
        ("42", STRING, "42"),
        (42, STRING, 42),
        ("x", STRINGS, ["x"]),
        ('["a", "b"]', STRINGS, ["a", "b"]),
        ("[broken", STRINGS, ["[broken"]),
        ("7", {"type": "array", "items": INTEGER}, [7]),
        ('["1", 2.0]', {"type": "array", "items": INTEGER}, [1, 2]),
        ("x", {"type": "array", "items": INTEGER}, "x"),
        (["1", "x"], {"type": "array", "items": INTEGER}, [1, "x"]),
        (["1", "x"], {"type": "array", "prefixItems": [INTEGER, STRING]}, [1, "x"]),
        (None, STRINGS, None),
        ('{"n": "1"}', schema(n=INTEGER), {"n": 1}),
        ({"n": {"m": "1"}}, schema(n=schema(m=INTEGER)), {"n": {"m": 1}}),
        ({"x": "1"}, {"type": "object", "additionalProperties": INTEGER}, {"x": 1}),
        ("null", {"type": ["integer", "null"]}, None),
        ("null", {"anyOf": [STRING, {"type": "null"}]}, None),
        ("null", STRING, "null"),
        ("null", {}, "null"),
        ("5", {"anyOf": [INTEGER, {"type": "null"}]}, 5),
        ("5", {"anyOf": [INTEGER, STRING]}, "5"),
        ("x", {"anyOf": [INTEGER, STRINGS]}, ["x"]),
        ("x", {"anyOf": [INTEGER, BOOLEAN]}, "x"),
        (
            {"k": "b", "n": "1"},
            {"oneOf": [schema(k={"const": "a"}), schema(k={"const": "b"}, n=INTEGER)]},
            {"k": "b", "n": 1},
        ),
        ("2", {"allOf": [INTEGER]}, 2),
        ("2", {"type": "integer", "enum": [1, 2]}, 2),
        ("2", {"$ref": "#/nowhere"}, "2"),
        ("2", {"type": "no such type"}, "2"),
    ]:
        before = json.dumps(text)
        value = coerce({"v": text}, schema(v=wanted))["v"]
        assert value == result, (text, wanted)
        assert type(value) is type(result), (text, wanted)
        assert json.dumps(text) == before, (text, wanted)


def test_coercion_follows_references_into_trees_and_a_schema_that_runs_in_circles_ends() -> None:
    kids = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    node = {"type": "object", "properties": {"n": INTEGER, "kids": kids}}
    tree = {"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}
    given = {"root": {"n": "1", "kids": [{"n": "2", "kids": '[{"n": "3"}]'}]}}
    assert coerce(given, tree) == {"root": {"n": 1, "kids": [{"n": 2, "kids": [{"n": 3}]}]}}
    circle = {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}
    given = {"v": {"w": "1"}}
    assert coerce(given, {"properties": {"v": {"$ref": "#/$defs/A"}}, "$defs": {"A": circle}}) == given


@pytest.mark.parametrize(
    "wanted", [{}, {"properties": 3}, {"properties": {"v": 7}}, {"type": 5}, {"anyOf": "x"}]
)
def test_a_broken_schema_changes_nothing(wanted: Any) -> None:
    assert coerce({"v": "1"}, wanted) == {"v": "1"}


@given(JSON_OBJECTS, JSON_OBJECTS)
def test_coercion_never_raises(arguments: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert isinstance(coerce(arguments, schema(**wanted)), dict)


PATHS = (
    ("a.txt", "a.txt", True), ("a.txt", "./x/../a.txt", True), ("a.txt", "/srv/a.txt", True),
    ("a", "a/b/c", True), ("a/b", "a", True), ("a", "ab", False), ("a/b", "a/c", False), ("", "x", True),
    (".", "x/y", True), ("..", "x", True), ("../other", "x", False), ("/", "x", True),
    ("//srv/a", "a", True),
)  # fmt: skip


def test_paths_conflict() -> None:
    for a, b, conflict in PATHS:
        assert paths_conflict(a, b, "/srv") is conflict, (a, b)
        assert paths_conflict(b, a, "/srv") is conflict, (a, b)


KNOWN = ("todo", "read_file", "list_directory", "web_search", "getWeather", "mcp-fetch")
MEANT = (
    ("todo", "todo"), ("Todo_tool", "todo"), ("TodoTool", "todo"), ("todo_tool_tool", "todo"),
    ("READ_FILE", "read_file"), ("read-file", "read_file"), ("read file", "read_file"),
    ("readFile", "read_file"), ("ReadFileTool", "read_file"), ('read_file"}', "read_file"),
    ("read_file<|channel|>", "read_file"), ('"read_file"', "read_file"), ("<read_file>", "read_file"),
    ("read_fiel", "read_file"), ("list_dir", "list_directory"), ("get_weather", "getWeather"),
    ("mcp_fetch", "mcp-fetch"), ("nope", None), ("", None), ("   ", None), ('"', None), ("<>", None),
    ("tool", "todo"), ("x" * 10_000, None),
)  # fmt: skip


@pytest.mark.behaviour("EXEC-01")
def test_repair() -> None:
    for name, meant in MEANT:
        assert repair_name(name, KNOWN) == meant, name


def test_an_exact_name_wins_over_its_spellings_and_two_equally_good_answers_are_none() -> None:
    assert repair_name("Echo", ("echo", "Echo")) == "Echo"
    assert repair_name("echo_tool", ("echo", "echo_tool")) == "echo_tool"
    assert repair_name("ECHO", ("eCho", "e-cho")) is None
    assert repair_name("put_c", ("put_a", "put_b")) is None
    assert repair_name("list_dir", KNOWN, cutoff=0.95) is None
    assert repair_name("todo", ()) is None


@given(st.text(), st.lists(st.text(min_size=1), unique=True, max_size=5))
def test_the_answer_is_always_a_known_name(name: str, known: list[str]) -> None:
    answer = repair_name(name, known)
    assert answer is None or answer in known
