"""Schemas that a client sends: checked quickly, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from fsm_agent.errors import ConfigError
from fsm_agent.output import JsonSchema
from fsm_agent.serve.openai.requests import check_schema


def doubled(levels: int) -> dict[str, Any]:
    """Each level refers twice to the next one."""
    defs: dict[str, Any] = {
        f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]}
        for n in range(levels)
    }
    return {"$ref": "#/$defs/l0", "$defs": {**defs, f"l{levels}": {"type": "object"}}}


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+$"}, "children": {"type": "array", "items": {"$ref": "#"}}},
}  # fmt: skip
USABLE = [{}, {"type": "object"}, TREE, doubled(5), {"properties": {"pattern": {"type": "string"}}}]
REFUSED = [
    (doubled(40), "too large"),
    ({"type": "string", "pattern": r"(a)\1"}, "cannot be matched quickly"),
    ({"properties": {"x": {"items": {"pattern": "(?=a)b"}}}}, "cannot be matched quickly"),
    ({"patternProperties": {"^(a+)+$": {}}}, "patternProperties"),
    ({"$ref": "https://example.org/x.json"}, "leads nowhere"),
    ({"$ref": "#/$defs/none"}, "leads nowhere"),
    ({"properties": {"x": {"$id": "https://example.org/", "$ref": "#/y"}}}, "at the top"),
    ({"type": 3}, "not a JSON schema"),
]  # fmt: skip


@pytest.mark.parametrize("schema", USABLE, ids=lambda one: str(one)[:40])
def test_what_is_checked_quickly_is_taken(schema: dict[str, Any]) -> None:
    check_schema(schema, "answer")


@pytest.mark.parametrize(("schema", "why"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_may_be_slow_or_leads_nowhere_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_schema(schema, "answer")


def test_a_pattern_that_would_backtrack_for_years_is_matched_at_once() -> None:
    schema = JsonSchema({"type": "string", "pattern": "^(a+)+$"})
    assert schema("a" * 10_000) == "a" * 10_000
    with pytest.raises(ValueError, match="does not match"):
        schema("a" * 60 + "!")


def test_a_pattern_knows_letters_beyond_ascii_and_lines() -> None:
    schema = JsonSchema({"type": "string", "pattern": "^.é$"})
    assert schema("üé") == "üé"
    with pytest.raises(ValueError, match="does not match"):
        schema("üé\n")
