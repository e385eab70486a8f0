"""What waits for a person, in the words of the debug console, and the answer that names it.

Every answer names what it answers by its number. So what was typed for one question cannot answer the next
one, which may have come meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fsm_agent.approvals.question import Question
from fsm_agent.errors import ConfigError
from fsm_agent.support.redaction import Exact

WIDTH = 100
"""Columns of a question; the console of an editor breaks longer rows by itself."""
Held = Mapping[str, Any]


def brief(held: Held) -> str:
    """What waits and how it is answered, on one line."""
    number = held["id"]
    if held["kind"] == "approval":
        longer = f", :approve {number} session" if held["question"]["remembered"] else ""
        allow = f":approve {number}{longer} or " if held["allowable"] else ""
        return f"{held['question']['name']} needs approval: type {allow}:deny {number}"
    name = held["question"]["name"] if "question" in held else held["name"]
    return f"{held['kind']} {name} is held back: type :answer {number} ANSWER or :let {number}"


def asked_for(held: Held) -> str:
    """All that a person reads before they answer: of a call every row of it, exactly as it would run."""
    return Exact("\n".join([*rows(held), f"  {brief(held)}"]))


def rows(held: Held) -> list[str]:
    """The rows of the question, if what is held is a call."""
    if "question" not in held:
        return []
    asked = Question.read(held["question"]).rows(WIDTH, longer=f":approve {held['id']} session")
    return [Exact(row) for row in asked]


def variables(held: Sequence[Held]) -> list[dict[str, Any]]:
    """What waits, as values in the tree."""
    return [
        {"answer": Exact(brief(one)), "question": rows(one)} if "question" in one else dict(one)
        for one in held
    ]


def answers(held: Iterable[Held]) -> list[str]:
    """The beginnings of commands that answer what waits."""
    by_kind = {"approval": ("approve", "deny")}
    return [f":{name} {one['id']}" for one in held for name in by_kind.get(one["kind"], ("answer", "let"))]


def named(held: Sequence[Held], words: str, *kinds: str) -> tuple[int, str]:
    """(number of what is answered, the other words). Raises ``ConfigError`` when no number is named, or none
    that waits for such an answer."""
    number, _, rest = words.partition(" ")
    waiting = [one["id"] for one in held if one["kind"] in kinds]
    if not waiting:
        raise ConfigError("nothing waits for this", " or ".join(kinds), "see the scope Request")
    if number not in map(str, waiting):
        allowed = ", ".join(map(str, waiting))
        raise ConfigError("an answer begins with the number of what it answers", words, allowed)
    return int(number), rest.strip()
