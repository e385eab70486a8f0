"""Where the agents of these tests send their spans and figures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.collected import Collected, collected


@pytest.fixture
def seen() -> Iterator[Collected]:
    with collected() as found:
        yield found
