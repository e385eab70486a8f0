"""Turns in the middle of which a provider answers oddly: any field of a reply may hold anything, a stream may come in
any order and be cut anywhere, any status and header may come with it. Such a reply is an answer that the provider
gave badly, and nothing else is hurt by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.helpers.odd_replies import (
    DIGITS,
    RECORDED,
    WIRES,
    each_odd_head,
    each_odd_order,
    each_place,
    nested,
    odd_replies,
    put,
    values_for,
)
from tests.helpers.odd_turns import MODELS, Odd, faults_of
from tests.helpers.sample import sampled

STREAMS = {wire: next(one for one in RECORDED if (one.wire, one.name) == (wire, "stream")) for wire in WIRES}
PARTS = 8
CHAT, MESSAGES, RESPONSES = (STREAMS[wire] for wire in WIRES)


@st.composite
def odd_turns(draw: st.DrawFn) -> Odd:
    wire = draw(st.sampled_from(WIRES))
    replies = draw(st.lists(odd_replies(wire), min_size=1, max_size=3))
    return Odd(draw(st.sampled_from(MODELS[wire])), *replies)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


DETAIL_FORMAT = (2, "choices", 0, "delta", "reasoning_details", 0, "format")
CALL_EXTRA = (9, "choices", 0, "delta", "tool_calls", 0, "extra_content", "x")


@given(odd=odd_turns())
@example(odd=Odd("openrouter:m", put(CHAT, DETAIL_FORMAT, "tail \ud83d")))
@example(odd=Odd("gemini:gemini-3-pro", put(CHAT, CALL_EXTRA, 1e999)))
@example(odd=Odd("anthropic:claude-sonnet-4-5", put(MESSAGES, (0, "message", "id"), DIGITS)))
@example(odd=Odd("anthropic:claude-sonnet-4-5", put(MESSAGES, (6, "content_block", "data"), {"": None})))
@example(odd=Odd("anthropic:claude-sonnet-4-5", put(MESSAGES, (15, "content_block", "name"), "echo\ud800")))
@example(odd=Odd("openai:gpt-5", put(RESPONSES, (6, "item", "encrypted_content"), float("inf"))))
@example(odd=Odd("openai:gpt-5", put(RESPONSES, (6, "item", "summary"), {"text": "\ud800"})))
@example(odd=Odd("openai:gpt-5", put(RESPONSES, (6, "item", "content"), nested(190))))
def test_a_turn_with_odd_replies_ends_well(odd: Odd, shared: Path) -> None:
    assert asyncio.run(faults_of(odd, shared)) == []


def each_odd_turn() -> Iterator[Odd]:
    """Every field of every recording once over the wire, each time with another value; every odd order and head."""
    fields = (
        put(recorded, path, values_for(recorded, path)[number % len(values_for(recorded, path))])
        for number, (recorded, path) in enumerate(each_place())
    )
    for number, recorded in enumerate((*fields, *each_odd_order(), *each_odd_head())):
        models = MODELS[recorded.wire]
        yield Odd(models[number % len(models)], recorded)


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(range(PARTS), "odd turns"))
def test_every_field_is_odd_once_in_a_turn(part: int, shared: Path) -> None:
    turns = list(each_odd_turn())[part::PARTS]
    print(f"{len(turns):,} turns")
    found = [f"{odd}: {fault}" for odd in turns for fault in asyncio.run(faults_of(odd, shared))]
    assert found[:5] == []
