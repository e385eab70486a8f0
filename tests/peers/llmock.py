"""PyPI ``llmock`` as a subprocess on loopback: a server that fails on demand, and its record of what a client
then did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.peers.environment import PeerProcess, peer_python

VERSION = "0.2.2"
_SERVE = """
import random
import sys
from llmock.chaos import ChaosSettings
from llmock.testing import LLMockServer

random.seed(7)
with LLMockServer(chaos=ChaosSettings.from_env()) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""
"""It chooses a free port and says which. Random faults are the same in every run."""


class LLMock(PeerProcess):
    """The server, driven through its ``/_llmock`` endpoints. ``options`` are its variables without
    ``LLMOCK_``: ``RPM``.

    Raises ``PeerUnavailable`` when it is not installed and cannot be.
    """

    def __init__(self, **options: object) -> None:
        own = {f"LLMOCK_{name}": str(value) for name, value in options.items()}
        python = peer_python("llmock", VERSION)
        super().__init__("llmock", [python, "-I", "-c", _SERVE], ("LLMOCK_",), **own)

    @property
    def url(self) -> str:
        """The base URL of its chat-completions wire."""
        return f"{self.root}/v1"

    def queue(self, *behaviours: Mapping[str, Any]) -> None:
        """What the next requests meet, in its own words: ``{"type": "fail", "status": 429}``."""
        if behaviours:
            self.ask("/_llmock/scenario", {"behaviors": behaviours})

    def requests(self) -> list[dict[str, Any]]:
        """Every completion asked for since ``reset``, in order: ``body``, ``status``, ``fault``,
        ``chunks_sent`` …"""
        return self.ask("/_llmock/requests")["requests"]

    def findings(self) -> list[str]:
        """What its verdict holds against the client, by code."""
        return [finding["code"] for finding in self.ask("/_llmock/verdict")["findings"]]

    def reset(self) -> None:
        """Forget what was queued and recorded, and refill quotas."""
        self.ask("/_llmock/reset", method="POST")
