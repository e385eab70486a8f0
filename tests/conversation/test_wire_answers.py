"""Schemas as vendors take them, and which way a model is asked for an answer of a type."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from fsm_agent.conversation.effects import OutputSpec, Runtime
from fsm_agent.conversation.wire.options import TAKEN, NotStrictError, mode_of, strict
from fsm_agent.output import OutputType

ALL = TAKEN["chat_completions"]


class Street(BaseModel):
    name: str = Field(pattern="^[A-Z]")


class House(BaseModel):
    """A house."""

    number: int = Field(ge=1, description="Of the street.")
    street: Street | None = None
    doors: list[Street] = Field(default=[], max_length=3)


def test_objects_are_closed_and_all_members_required() -> None:
    made = strict(OutputType[Any](House).spec.schema, ALL)
    assert made["required"] == ["number", "street", "doors"]
    assert made["additionalProperties"] is False
    assert made["$defs"]["Street"]["required"] == ["name"]
    assert made["$defs"]["Street"]["additionalProperties"] is False
    assert made["properties"]["number"] == {"type": "integer", "minimum": 1, "description": "Of the street."}
    assert "default" not in str(made)


def test_bounds_that_a_vendor_does_not_take_are_told_in_words() -> None:
    made = strict(OutputType[Any](House).spec.schema, TAKEN["anthropic_messages"])
    assert made["properties"]["number"] == {"type": "integer", "description": "Of the street.\nminimum: 1"}
    street = made["$defs"]["Street"]["properties"]["name"]
    assert street == {"type": "string", "description": "pattern: ^[A-Z]"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": ["object", "null"]}}},
        {"anyOf": [{"type": "string"}]},
    ],
)
def test_what_cannot_be_strict_is_said(schema: Any) -> None:
    with pytest.raises(NotStrictError):
        strict(schema, ALL)


BASIC = [
    {"type": "string", "maxLength": 3},
    {"type": "integer", "minimum": 2},
    {"enum": ["a", 1]},
    {"const": None},
]
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.sampled_from(BASIC),
    lambda inner: st.one_of(
        inner.map(lambda one: {"type": "array", "items": one}),
        st.lists(inner, min_size=1, max_size=3).map(lambda many: {"anyOf": many}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda members: {"type": "object", "properties": members, "required": list(members)[:1]}
        ),
    ),
    max_leaves=6,
)
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["a", "abcd"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(SCHEMAS, VALUES)
def test_what_fits_the_strict_schema_fits_the_other(schema: dict[str, Any], value: Any) -> None:
    """But for bounds that are told in words."""
    whole = {"type": "object", "properties": {"a": schema}}
    made = strict(whole, ALL | {"maxLength"})
    if jsonschema.Draft202012Validator(made).is_valid({"a": value}):
        jsonschema.validate({"a": value}, whole)


OPEN = {"type": "object", "additionalProperties": {"type": "integer"}}
CLOSED = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("wanted", "best", "schema", "local", "tools", "repairs", "toolless", "mode"),
    [
        (None, "native", CLOSED, False, True, (), False, "native"),
        (None, "tool", CLOSED, False, True, (), False, "tool"),
        (None, "prompt", CLOSED, False, False, (), False, "prompt"),
        ("prompt", "native", CLOSED, False, True, (), False, "prompt"),
        ("native", "tool", CLOSED, False, True, (), False, "native"),
        (None, "native", OPEN, False, True, (), False, "tool"),  # no vendor holds a model to that
        (None, "native", OPEN, True, False, (), False, "native"),  # a grammar does
        (None, "native", CLOSED, True, True, (), False, "tool"),  # and in a grammar there are no calls
        (None, "native", CLOSED, False, True, ("structured_output",), False, "tool"),
        ("native", "tool", CLOSED, False, True, ("structured_output",), False, "tool"),
        (None, "native", CLOSED, False, True, (), True, "prompt"),
        ("tool", "native", CLOSED, False, True, (), True, "prompt"),
    ],
)
def test_a_model_is_asked_in_the_way_that_it_can(
    wanted: Any, best: Any, schema: Any, local: bool, tools: bool, repairs: Any, toolless: bool, mode: str
) -> None:
    runtime = Runtime("p", "m", local=local, structured_output=best)
    spec = OutputSpec("answer", schema, wanted)
    assert mode_of(spec, runtime, repairs, toolless=toolless, tools=tools) == mode
