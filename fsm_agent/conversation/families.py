"""Who makes reasoning in which form, and what each of them takes back.

A reply has parts that mean something to their maker only: signatures, encrypted items, thought signatures,
reasoning. The message that holds them says who made it (``Message.issuer``); they go back to that issuer as
they came, and to nobody else (BUILD-09). The rows follow what vendors publish of their wires, which changes
without notice. (Why: decision 90.)"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import ApiMode, Runtime

Replay = Literal["nothing", "text", "chunks", "details", "extras", "signed", "unsigned", "items"]


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """Models, or servers, that give reasoning in the same form and take it back in the same way.

    ``mode``: the wire. ``providers`` and ``models`` say who belongs to it: names of profiles, parts of
    models' names; empty for all. ``replay``: what goes back.

    - ``text``: the text of the reasoning, in the ``field`` of the assistant row; ``required``: the field has
      to be there, with a blank where there is nothing to say.
    - ``chunks``: the text, as a part of the content before what was said.
    - ``details``: the list ``reasoning_details``.
    - ``extras``: ``extra_content`` of calls and rows; ``stand_in``: the signature that the first call of a
      round gets when its maker was another.
    - ``signed``: thinking blocks with their signatures, and as text what was not signed; ``unsigned``:
      thinking blocks without.
    - ``items``: encrypted reasoning, and the phase that a text was said in.

    ``by_model``: only the very model takes it back; else every model at the same address does. ``id_length``:
    an id of a call has so many letters and digits, where it matters; others get one that has."""

    name: str
    mode: ApiMode
    replay: Replay
    providers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    field: str = ""
    required: bool = False
    stand_in: str = ""
    by_model: bool = False
    id_length: int = 0

    def has(self, mode: ApiMode, provider: str, model: str) -> bool:
        """Say whether this model of this provider belongs to the family on this wire."""
        named = not self.models or any(part in model.lower() for part in self.models)
        return mode == self.mode and named and (not self.providers or provider in self.providers)


_CHAT: ApiMode = "chat_completions"
_MESSAGES: ApiMode = "anthropic_messages"
GEMINI_STAND_IN = "skip_thought_signature_validator"
"""What Google says to send for a call that no model of theirs has made."""

FAMILIES: tuple[ReasoningFamily, ...] = (
    ReasoningFamily("anthropic", _MESSAGES, "signed", providers=("anthropic",)),
    ReasoningFamily("claude", _MESSAGES, "signed", models=("claude",)),
    ReasoningFamily("unsigned", _MESSAGES, "unsigned", providers=("deepseek", "moonshot")),
    ReasoningFamily("messages", _MESSAGES, "nothing"),
    ReasoningFamily("responses", "codex_responses", "items"),
    ReasoningFamily("openrouter", _CHAT, "details", providers=("openrouter",), by_model=True),
    ReasoningFamily(
        "gemini 2", _CHAT, "extras", ("gemini", "vertex"), models=("gemini-1", "gemini-2"), by_model=True
    ),
    ReasoningFamily(
        "gemini", _CHAT, "extras", ("gemini", "vertex"), ("gemini",), stand_in=GEMINI_STAND_IN, by_model=True
    ),
    ReasoningFamily(
        "deepseek", _CHAT, "text", providers=("deepseek",), field="reasoning_content", required=True
    ),
    ReasoningFamily("kimi", _CHAT, "text", providers=("moonshot",), field="reasoning_content", required=True),
    ReasoningFamily("glm", _CHAT, "text", providers=("zai",), field="reasoning_content"),
    ReasoningFamily("qwen", _CHAT, "text", providers=("qwen",), field="reasoning_content"),
    ReasoningFamily("mistral", _CHAT, "chunks", providers=("mistral",), id_length=9),
    ReasoningFamily("vllm", _CHAT, "text", providers=("vllm",), field="reasoning"),
    ReasoningFamily("llama.cpp", _CHAT, "text", providers=("llamacpp",), field="reasoning_content"),
    ReasoningFamily("chat", _CHAT, "nothing"),
)
"""The first that fits counts."""


@cache
def family_of(mode: ApiMode, provider: str = "", model: str = "") -> ReasoningFamily:
    """Return the family of a model. ``provider``: the known provider whose manners its own has."""
    return next(family for family in FAMILIES if family.has(mode, provider, model))


def issuer_of(runtime: Runtime) -> str:
    """Return who makes what this model says, as messages name it: provider and address, and the model where
    no other takes back what it made. No name, key or query of the address is in it."""
    parts = urlsplit(runtime.base_url or "")
    host = parts.netloc.rpartition("@")[2]
    address = f"{parts.scheme}://{host}{parts.path}" if host else ""
    model = f"#{runtime.model}" if runtime_family(runtime).by_model else ""
    return f"{runtime.provider}:{address}{model}"


def runtime_family(runtime: Runtime) -> ReasoningFamily:
    """Return the family of the model that a turn runs on."""
    return family_of(runtime.api_mode, runtime.manners or runtime.provider, runtime.model)
