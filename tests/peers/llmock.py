"""PyPI ``llmock`` as a subprocess on loopback: a server that fails on demand, and its record of what a client
then did."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from tests.peers.environment import peer_python

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
"""It chooses a free port, says which, and ends when our end of its input is closed, however we ended. Random
faults are the same in every run."""


class LLMock:
    """The server, driven through its ``/_llmock`` endpoints. ``options`` are its variables without
    ``LLMOCK_``: ``RPM``.

    Raises ``PeerUnavailable`` when it is not installed and cannot be.
    """

    def __init__(self, **options: object) -> None:
        python = peer_python("llmock", VERSION)
        own = {
            name: value for name, value in os.environ.items() if not name.startswith(("LLMOCK_", "PYTHON"))
        }
        own |= {f"LLMOCK_{name}": str(value) for name, value in options.items()}
        self._process = subprocess.Popen(
            [python, "-I", "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own, text=True
        )
        assert self._process.stdout is not None
        self._root = self._process.stdout.readline().strip()
        if not self._root:
            self.close()
            raise RuntimeError(
                f"llmock ended with status {self._process.returncode} before it served anything"
            )

    @property
    def url(self) -> str:
        """The base URL of its chat-completions wire."""
        return f"{self._root}/v1"

    def queue(self, *behaviours: Mapping[str, Any]) -> None:
        """What the next requests meet, in its own words: ``{"type": "fail", "status": 429}``."""
        if behaviours:
            self._ask("POST", "scenario", {"behaviors": behaviours})

    def requests(self) -> list[dict[str, Any]]:
        """Every completion asked for since ``reset``, in order: ``body``, ``status``, ``fault``,
        ``chunks_sent`` …"""
        return self._ask("GET", "requests")["requests"]

    def findings(self) -> list[str]:
        """What its verdict holds against the client, by code."""
        return [finding["code"] for finding in self._ask("GET", "verdict")["findings"]]

    def reset(self) -> None:
        """Forget what was queued and recorded, and refill quotas."""
        self._ask("POST", "reset")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._root}/_llmock/{path}", data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            return json.load(response)
