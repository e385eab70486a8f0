"""Reasoning of models: which vendor writes it in which form, and how it is kept out of the live text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.support.texts import CLOSERS, ECHO, MARK, MOST_MARKS, TAGS

# Which providers produce reasoning in which form, and what each of them takes back.
#
# A reply has parts that only its maker can read: signatures, encrypted items, thought signatures,
# reasoning. The message that holds them names its maker (``Message.issuer``). They are returned unchanged
# to that issuer only (BUILD-09). The rows follow the vendors' published wires, which change without notice.
# (Why: decision 90.)


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

    ``by_model``: only the same model takes it back; else every model at the same address does. ``id_length``:
    letters and digits that the id of a call must have, where it matters; other ids are replaced."""

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


@lru_cache(maxsize=64)
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


# Keeping inline reasoning out of the live text: a filter that sees the text only in pieces.


_HERE, _ON_A_LINE = re.compile(MARK, re.IGNORECASE), re.compile(f"(?m:^){MARK}", re.IGNORECASE)
_UNDECIDED = (*(f"<{name}>" for name in (*TAGS, ECHO)), "```", "~~~")
MOST_HELD = 1_000
"""Characters of one line; no model indents a tag by more."""


class ThinkScrubber:
    """Splits streamed text into visible text and reasoning, as ``split_reasoning`` does with a whole text;
    what could still become a tag is held back until it is decided (CALL-05)."""

    def __init__(self) -> None:
        self._held = ""
        self._closer: re.Pattern[str] | None = None
        self._longest_closer = 0
        self._line_start = True
        self._fenced = False
        self._after_tag = False
        self._marks = 0

    def feed(self, delta: str) -> tuple[str, str]:
        """The (visible, reasoning) text that this piece decides."""
        if not (self._line_start or self._held or self._closer or self._after_tag) and "\n" not in delta:
            return delta, ""  # nearly always: a mark begins a line
        return self._decide(self._held + delta, final=False)

    def flush(self) -> tuple[str, str]:
        """What was still held back, at the end of the stream."""
        return self._decide(self._held, final=True)

    def _decide(self, text: str, *, final: bool) -> tuple[str, str]:
        visible: list[str] = []
        reasoning: list[str] = []
        at, before = 0, -1
        while before < at < len(text):
            before = at
            if self._closer is not None:
                at = self._thinking(text, at, final, reasoning)
            else:
                at = self._talking(text, at, final, visible)
        self._held = text[at:]
        return "".join(visible), "".join(reasoning)

    def _thinking(self, text: str, at: int, final: bool, reasoning: list[str]) -> int:
        """Take reasoning from ``at`` on; returns where it ends."""
        assert self._closer is not None
        if closer := self._closer.search(text, at):
            self._keep(text[at : closer.start()], reasoning)
            self._closer, self._line_start, self._after_tag = None, True, True
            return closer.end()
        end = len(text) if final else max(at, len(text) - self._longest_closer + 1)
        self._keep(text[at:end], reasoning)
        return end

    def _keep(self, thought: str, reasoning: list[str]) -> None:
        if self._closer is not CLOSERS[ECHO]:
            reasoning.append(thought)

    def _talking(self, text: str, at: int, final: bool, visible: list[str]) -> int:
        """Take visible text from ``at`` to the next mark; returns where that ends."""
        if self._after_tag:
            at = _end_of_newlines(text, at)
            self._after_tag = at == len(text)
        mark, line = None, at if self._line_start else text.find("\n", at) + 1
        if self._marks < MOST_MARKS and (line or self._line_start):
            mark = _HERE.match(text, line) or _ON_A_LINE.search(text, line)
        if mark is None:
            end = len(text) if final else self._decided(text, at)
        elif mark["tag"] and not self._fenced:
            visible.append(text[at : mark.start()])
            self._closer, self._longest_closer = CLOSERS[mark["tag"].lower()], len(mark["tag"]) + 3
            self._marks += 1
            return mark.end()
        else:
            self._fenced ^= mark["tag"] is None
            self._marks += 1
            end = text.find("\n", mark.end()) + 1 or len(text)
        visible.append(text[at:end])
        if end > at:
            self._line_start = text[end - 1] == "\n"
        return end

    def _decided(self, text: str, at: int) -> int:
        """Where the last line begins when it may still become a mark, else the end of the text."""
        line = max(at, text.rfind("\n", at) + 1)
        begun = text[line:].lstrip(" \t").lower() if len(text) - line <= MOST_HELD else "-"
        may_become = (line > at or self._line_start) and any(word.startswith(begun) for word in _UNDECIDED)
        return line if may_become and self._marks < MOST_MARKS else len(text)


def _end_of_newlines(text: str, at: int) -> int:
    while text.startswith("\n", at):
        at += 1
    return at
