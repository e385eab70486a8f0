"""What a request of a workflow declares about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fsm_agent.fsm.journal import UNKNOWN, kept_reply, kept_request
from fsm_agent.request import Effect, Request
from fsm_agent.sessions.store.journal.log import Recorded, Recording


@dataclass(frozen=True)
class Ask(Request):
    what: str
    reply: ClassVar[Any] = str


@dataclass(frozen=True)
class AskAnew(Ask):
    reused: ClassVar[bool] = False


@dataclass(frozen=True)
class Pay(AskAnew):
    effect: ClassVar[Effect] = "unsafe"

    def in_doubt(self) -> str:
        return "perhaps"


@pytest.mark.parametrize(
    ("request_", "found"), [(Ask("time"), "noon"), (AskAnew("time"), UNKNOWN), (Pay("time"), "noon")]
)
def test_a_recorded_reply_is_used_again_unless_the_request_declares_otherwise(
    request_: Ask, found: object
) -> None:
    kept = Recorded(type(request_).__name__, kept_request(request_), "done", kept_reply(request_, "noon"))
    assert Recording({(0, 0): kept}).reply(0, 0, request_) == found
