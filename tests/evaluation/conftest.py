"""Four cases, and a server that answers three of them well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fsm_agent.conversation.messages import Usage
from fsm_agent.evaluation import Case
from fsm_agent.testing import ScriptedServer, repeat, text

CAPITALS = {"Norway": "Oslo", "Italy": "Rome", "France": "Paris", "Spain": "Madrid"}
CASES = [Case(land, f"The capital of {land}?", city) for land, city in CAPITALS.items()]


def knows(received: Any) -> Any:
    """Answers from the table, but for Spain."""
    asked = received.body["messages"][-1]["content"]
    land = next(one for one in CAPITALS if one in asked)
    return text("Barcelona" if land == "Spain" else CAPITALS[land], usage=Usage(10, 2))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(repeat(knows)) as running:
        yield running
