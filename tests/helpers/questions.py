"""Read questions for approval back: rebuild the call from the rows on a screen, using only the
documented format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from fsm_agent.approvals.question import original

TEXTS = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "\\xuU01b {}[]()\"'.,=│┆›↵⇥⟨⟩ \n\t\r\x1b\x07\x9b\u061c\u200b\u2028\u2029\u202e\u2066\ufeff\ud800\U000e0041"
        ),
    ),
    max_size=60,
)
NAMES = st.one_of(TEXTS, st.sampled_from(["command", "path", "a.b", "s, a or never would remember │ x"]))
VALUES = st.recursive(
    st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
"""Of any call."""
_STEP = r"\.?[A-Za-z_]\w*|\[\d+\]|\[\"(?:[^\"\\]|\\.)*\"\]"
_STEPS = re.compile(_STEP)
_ROW = re.compile(rf"    (?P<place>(?:{_STEP})*) *(?P<sign>[│┆=]) (?P<text>.*)", re.DOTALL)


def call_in(screen: str) -> dict[Any, Any]:
    """The arguments that the rows of a question show; see ``with_lists_as_objects``."""
    parts: list[tuple[str, str, str]] = []
    place = ""
    for row in screen.split("\n")[1:]:
        if row.startswith("    › "):
            place += row.removeprefix("    › ")
        elif (found := _ROW.fullmatch(row)) is not None:
            place = found["place"] or place
            if place:
                parts.append((place, found["sign"], found["text"]))
            else:
                before, sign, text = parts[-1]
                parts[-1] = (before, sign, text + ("\n" if found["sign"] == "│" else "") + found["text"])
            place = ""
        else:
            break  # the parts are over
    return rebuilt((place, original(shown), sign == "│") for place, sign, shown in parts)


def rebuilt(parts: Iterable[tuple[str, str, bool]]) -> dict[Any, Any]:
    """The arguments whose values are these, by (place, text, is it a text?)."""
    whole: dict[Any, Any] = {}
    for place, text, words in parts:
        *way, last = [_key(step) for step in _STEPS.findall(place)]
        here = whole
        for key in way:
            here = here.setdefault(key, {})
        here[last] = text if words else json.loads(text)
    return whole


def call_of(question: Mapping[str, Any]) -> dict[Any, Any]:
    """The arguments that the parts of a question, as JSON, show."""
    return rebuilt((part["place"], original(part["shown"]), part["words"]) for part in question["parts"])


def _key(step: str) -> str | int:
    if step.startswith('["'):
        return str(json.loads(step[1:-1]))
    return int(step[1:-1]) if step.startswith("[") else step.removeprefix(".")


def with_lists_as_objects(value: Any) -> Any:
    """A list with texts, lists or objects in it is shown by its indices."""
    if isinstance(value, dict):
        return {key: with_lists_as_objects(one) for key, one in value.items()}
    if isinstance(value, list) and any(isinstance(one, str | list | dict) for one in value):
        return {index: with_lists_as_objects(one) for index, one in enumerate(value)}
    return value
