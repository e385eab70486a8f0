"""What vendors' models do in ways of their own: reasoning that only its maker takes back, and tools that a
provider runs itself. Each is a table, whose first row that fits a model counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

from fsm_agent.conversation.effects import ApiMode, Runtime
from fsm_agent.settings import HostedName
from fsm_agent.support.texts import one_line

# ----------------------------------------------------------------------------------------------------
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
    return next(family for family in FAMILIES if _fits(family, mode, provider, model))


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


# ----------------------------------------------------------------------------------------------------
# Tools that a provider runs itself: who has which, how it is asked for, and how what it did is kept.
#
# What such a tool did comes as a part of the reply. It is kept for its maker and goes back as it came;
# nothing here, or anywhere else, runs it.


HOSTED = "hosted"
"""The type of the block that keeps the content of a reply of the Messages wire with such tools in it."""
ITEMS = frozenset({"web_search_call", "code_interpreter_call"})
"""What they are in a reply of the Responses wire."""
_STATUSES = {"in_progress", "searching", "interpreting", "completed", "incomplete", "failed"}
_ACTIONS = {"search", "open_page", "find_in_page"}
_THOUGHTS = ("thinking", "redacted_thinking")
SILENCE = 300.0
"""Seconds that a reply in which such tools run may be silent at least."""
_KINDS = ("text", "thinking", "server_tool_use", "_tool_result", "container_upload")
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One tool on one wire. ``providers`` and ``models`` say who has it, as a ``ReasoningFamily`` does.
    ``form``: an entry among the tools, or fields of the body (``place``); what a person says of the tool goes
    over it. ``include``: what the reply is to tell of it besides."""

    name: HostedName
    mode: ApiMode
    form: Mapping[str, Any]
    providers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    place: Literal["tools", "body"] = "tools"
    include: tuple[str, ...] = ()


_OLD = ("claude-3", "claude-haiku-4", "claude-sonnet-4-2", "claude-sonnet-4-5", "claude-opus-4-1",
        "claude-opus-4-2", "claude-opus-4-5")  # fmt: skip
"""Models that are older than the present forms of the tools."""
_SEARCH: HostedName = "web_search"
_CODE: HostedName = "code_execution"


def _claude(name: HostedName, version: str, models: tuple[str, ...] = ()) -> HostedTool:
    form = {"type": f"{name}_{version}", "name": name}
    return HostedTool(name, "anthropic_messages", form, providers=("anthropic",), models=models)


_ROWS: tuple[HostedTool, ...] = (
    HostedTool(_SEARCH, "codex_responses", {"type": "web_search"}),
    HostedTool(
        _CODE, "codex_responses", {"type": "code_interpreter", "container": {"type": "auto"}},
        include=("code_interpreter_call.outputs",),
    ),
    _claude(_SEARCH, "20250305", _OLD),
    _claude(_CODE, "20250825", _OLD),
    _claude(_SEARCH, "20260318"),
    _claude(_CODE, "20260521"),
    HostedTool(
        _SEARCH, "chat_completions", {"web_search_options": {}}, ("openai",), ("-search",), place="body"
    ),
    HostedTool(_SEARCH, "chat_completions", {"plugins": [{"id": "web"}]}, ("openrouter",), place="body"),
)  # fmt: skip
"""The first that fits counts. A wire that none is of has no such tools."""


def hosted_tools(runtime: Runtime) -> Mapping[str, HostedTool]:
    """Return the tools that the provider of this model runs, by name."""
    return _tools_hosted_by(runtime.api_mode, runtime.manners or runtime.provider, runtime.model)


@lru_cache(maxsize=64)
def _tools_hosted_by(mode: ApiMode, provider: str, model: str) -> Mapping[str, HostedTool]:
    """Asked for several times with each request, for the same model."""
    found: dict[str, HostedTool] = {
        row.name: row for row in reversed(_ROWS) if _fits(row, mode, provider, model)
    }
    return MappingProxyType(found)


# What they did


def hosted_blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the blocks that keep what a provider's own tools did."""
    return tuple(block for block in blocks if block.get("type") == HOSTED or block.get("type") in ITEMS)


def taken_back(item: Mapping[str, Any]) -> bool:
    """Say whether an item of the Responses wire has what its provider takes back: one that it refuses would
    spoil every later request."""
    if str(item.get("status")) not in _STATUSES or not isinstance(item.get("id"), str):
        return False
    if item.get("type") == "web_search_call":
        action = item.get("action")
        return isinstance(action, Mapping) and str(action.get("type")) in _ACTIONS
    code, outputs = item.get("code"), item.get("outputs")
    ran = isinstance(code, str | None) and isinstance(item.get("container_id"), str)
    return ran and isinstance(outputs, list | None)


def without_thoughts(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return what is left of a message's blocks when its thoughts are not sent any more."""
    return tuple(
        {**block, "content": [one for one in _content(block) if one["type"] not in _THOUGHTS]}
        for block in blocks
        if block.get("type") == HOSTED
    )


def content_again(blocks: Iterable[Mapping[str, Any]], text: str) -> list[dict[str, Any]] | None:
    """Return the content that such a reply had, as it goes back; ``None`` when no block keeps any. ``text``:
    what the message says. A tool that was begun and did not end is left out: its maker refuses it."""
    found = [dict(one) for block in blocks for one in _content(block)]
    if not found:
        return None
    ended = [one.get("tool_use_id") for one in found]
    kept = [one for one in found if one["type"] != "server_tool_use" or one.get("id") in ended]
    told = "".join(str(one.get("text", "")) for one in kept if one["type"] == "text")
    if told.strip() == text.strip():
        return [one for one in kept if one["type"] != "text" or str(one.get("text", "")).strip()]
    said = [{"type": "text", "text": text}] if text.strip() else []
    return [*(one for one in kept if one["type"] != "text"), *said]


def words_of(item: Mapping[str, Any]) -> str:
    """Say in a line what a provider did by itself; empty for what is no such thing."""
    given = item.get("input") or item.get("action") or item
    given = given if isinstance(given, Mapping) else {}
    what, name = item.get("type"), item.get("name")
    if what == "web_search_call" or (what == "server_tool_use" and name == "web_search"):
        asked = given.get("query") or given.get("url") or ", ".join(map(str, given.get("queries") or ()))
        return f"the provider searched the web{_quote_names(asked)}"
    if what == "code_interpreter_call" or (what == "server_tool_use" and "code_execution" in str(name)):
        return f"the provider ran code{_quote_names(given.get('code') or given.get('command'))}"
    return f"the provider ran {one_line(str(name), 60)}" if what == "server_tool_use" else ""


def hosted_lines(blocks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each thing that a provider did by itself in a message with these blocks."""
    for block in blocks:
        items = _content(block) if block.get("type") == HOSTED else (block,)
        yield from filter(None, map(words_of, items))


def _content(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What such a block keeps, of the kinds that a reply can have had besides calls: a block may come from
    anywhere."""
    content = block.get("content") if block.get("type") == HOSTED else None
    items = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list | tuple) else []
    return [one for one in items if str(one.get("type", "")).endswith(_KINDS)]


def _quote_names(words: object) -> str:
    return f": {one_line(words, _LONGEST)}" if isinstance(words, str) and words.strip() else ""


def _fits(row: ReasoningFamily | HostedTool, mode: ApiMode, provider: str, model: str) -> bool:
    """Say whether a row is for this model of this provider on this wire."""
    name = model.lower().replace(".", "-")
    named = not row.models or any(part in name for part in row.models)
    return mode == row.mode and named and (not row.providers or provider in row.providers)
