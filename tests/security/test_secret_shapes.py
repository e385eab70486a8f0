"""Secrets of every known shape are hidden in what is shown, logged and exported; ordinary text stays."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.support.redaction import SECRET_SHAPES, SecretShape, mask, mask_json

ROOT = Path(__file__).parents[2]
each = pytest.mark.parametrize("shape", SECRET_SHAPES, ids=lambda shape: shape.name)


def parts(shape: SecretShape) -> tuple[str, str, str]:
    found = re.fullmatch("(.*)⟨(.*)⟩(.*)", shape.example, re.DOTALL)
    assert found is not None
    return found[1], found[2], found[3]


@each
def test_a_secret_is_hidden_and_the_text_around_it_stays(shape: SecretShape) -> None:
    before, secret, after = parts(shape)
    assert mask(f"see: {before}{secret}{after} there") == f"see: {before}***{after} there"
    assert mask_json({"a": [before + secret + after]}) == {"a": [f"{before}***{after}"]}
    assert any(sign in (before + secret + after).lower() for sign in shape.signs)


@each
def test_ordinary_text_stays(shape: SecretShape) -> None:
    assert mask(shape.ordinary) == shape.ordinary


@each
def test_each_row_is_needed(shape: SecretShape) -> None:
    """By itself it hides its example, and no other row does."""
    before, secret, after = parts(shape)
    hides = [one.name for one in SECRET_SHAPES if one.compiled.search(before + secret + after)]
    assert hides == [shape.name]


def test_what_is_ordinary_for_one_is_so_for_all() -> None:
    for shape in SECRET_SHAPES:
        assert [one.name for one in SECRET_SHAPES if one.compiled.search(shape.ordinary)] == []


@pytest.mark.slow
def test_our_own_code_stays_but_for_its_examples() -> None:
    """As a sample of ordinary code: what is hidden in it can be counted."""
    hidden = [
        (path.name, shape.name)
        for path in sorted((ROOT / "fsm_agent").rglob("*.py"))
        if path.name != "secret_shapes.py"
        for shape in SECRET_SHAPES
        if shape.compiled.search(path.read_text(encoding="utf-8"))
    ]
    assert hidden == []


def test_json_in_json_is_still_json() -> None:
    inner = json.dumps({"password": 'ab"cd\\ef', "n": 1})
    assert json.loads(mask(inner)) == {"password": "***", "n": 1}


@pytest.mark.slow
@each
@pytest.mark.parametrize("size", [200_000])
def test_no_text_is_slow(shape: SecretShape, size: int) -> None:
    """Its own beginnings over and over, at any point of which it could begin."""
    before, secret, _ = parts(shape)
    for part in (
        before,
        before + secret[:1],
        shape.signs[0],
        f"{before} ",
        secret,
        shape.example[:7],
        "curl -a ",
        "mysql -a ",
    ):
        text = part * (size // max(1, len(part)))
        began = time.process_time()
        shape.compiled.sub("", text)
        assert time.process_time() - began < 2, part


@given(st.text(max_size=200))
def test_hiding_twice_changes_nothing(text: str) -> None:
    once = mask(text)
    assert mask(once) == once
