"""The glossary has every word of the turn that a reader meets on the page, in a snapshot or in a proof."""

from __future__ import annotations

from pathlib import Path

from fsm_agent.conversation.exit_reason import Outcome
from fsm_agent_states.table import TURN
from tests.helpers.page_glossary import WRITTEN, glossary_script

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| ")][1:]


def test_every_counter_is_explained_once_in_the_order_of_the_table() -> None:
    assert first_cells("The counters of the turn") == [f"`{counter.name}`" for counter in TURN.counters]


def test_every_state_and_outcome_is_named() -> None:
    for state in TURN.states:
        assert f"`{state}`" in PAGE
    for outcome in Outcome:
        assert outcome.value in PAGE


def test_no_word_is_explained_twice() -> None:
    words = [
        word
        for heading in ("The machine", "Conversations and the store", "Models")
        for word in first_cells(heading)
    ]
    assert len(words) == len(set(words))


def test_the_page_of_the_debugger_explains_words_as_the_glossary_does() -> None:
    assert WRITTEN.read_text(encoding="utf-8") == glossary_script(), "python -m tests.helpers.page_glossary"
