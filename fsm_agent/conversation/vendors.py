"""Vendor-specific behavior of models: reasoning that only its issuer accepts back, and hosted tools. Each is
a table, of which the first matching row applies."""

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
# Which providers produce reasoning in which form, and what each of them accepts back.
#
# A reply has parts that only its issuer can read: signatures, encrypted items, thought signatures, reasoning.
# The message that contains them names the issuer (``Message.issuer``). They are returned unchanged, and only
# to that issuer (BUILD-09). The rows follow the vendors' published wires, which change without notice. (Why:
# decision 90.)


Replay = Literal["nothing", "text", "chunks", "details", "extras", "signed", "unsigned", "items"]


@dataclass(frozen=True, slots=True)
class ReasoningFamily:
    """Models or servers that produce reasoning in the same form and accept it back in the same form.

    ``mode``: the wire. ``providers`` and ``models``: its members, as names of profiles and parts of models'
    names; empty for all. ``replay``: what is sent back:

    - ``text``: the text of the reasoning, in the ``field`` of the assistant row; ``required``: the field must
      be present, with a blank if there is no reasoning.
    - ``chunks``: the text, as a part of the content before the answer.
    - ``details``: the list ``reasoning_details``.
    - ``extras``: ``extra_content`` of calls and rows; ``stand_in``: the signature for the first call of a
      round that another model made.
    - ``signed``: thinking blocks with their signatures; unsigned ones as text. ``unsigned``: thinking blocks
      without signatures.
    - ``items``: encrypted reasoning, and the phase of a text.

    ``by_model``: only the same model accepts it back; else every model at the same address does.
    ``id_length``: required letters and digits of a call's id, if any; other ids are replaced."""

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
"""Google's documented signature for a call that was not made by a Gemini model."""

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
"""The first match applies."""


@cache
def family_of(mode: ApiMode, provider: str = "", model: str = "") -> ReasoningFamily:
    """Return the family of a model. ``provider``: its provider, or the one whose manners it has."""
    return next(family for family in FAMILIES if _fits(family, mode, provider, model))


@lru_cache(maxsize=64)
def issuer_of(runtime: Runtime) -> str:
    """Return the issuer that messages of this model name: provider and address, and the model if no other
    accepts its reasoning back. It contains no user name, key or query of the address."""
    parts = urlsplit(runtime.base_url or "")
    host = parts.netloc.rpartition("@")[2]
    address = f"{parts.scheme}://{host}{parts.path}" if host else ""
    model = f"#{runtime.model}" if runtime_family(runtime).by_model else ""
    return f"{runtime.provider}:{address}{model}"


def runtime_family(runtime: Runtime) -> ReasoningFamily:
    """Return the family of the model that a turn runs on."""
    return family_of(runtime.api_mode, runtime.manners or runtime.provider, runtime.model)


# ----------------------------------------------------------------------------------------------------
# Hosted tools, which a provider runs itself: who has them, how they are requested, and how their results are
# kept.
#
# The actions of such a tool arrive as part of the reply. They are kept for the issuer and sent back
# unchanged; no code here, or anywhere else, runs them.


HOSTED = "hosted"
"""The type of the block that keeps the content of a Messages reply with hosted tools."""
ITEMS = frozenset({"web_search_call", "code_interpreter_call"})
"""Types of hosted-tool items in a Responses reply."""
_STATUSES = {"in_progress", "searching", "interpreting", "completed", "incomplete", "failed"}
_ACTIONS = {"search", "open_page", "find_in_page"}
_THOUGHTS = ("thinking", "redacted_thinking")
SILENCE = 300.0
"""Minimum seconds of silence to allow a reply in which hosted tools run."""
_KINDS = ("text", "thinking", "server_tool_use", "_tool_result", "container_upload")
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class HostedTool:
    """One hosted tool on one wire. ``providers`` and ``models``: as in ``ReasoningFamily``. ``form``: an
    entry in the list of tools, or fields of the body (``place``); the user's options override it.
    ``include``: additional output to request."""

    name: HostedName
    mode: ApiMode
    form: Mapping[str, Any]
    providers: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    place: Literal["tools", "body"] = "tools"
    include: tuple[str, ...] = ()


_OLD = ("claude-3", "claude-haiku-4", "claude-sonnet-4-2", "claude-sonnet-4-5", "claude-opus-4-1",
        "claude-opus-4-2", "claude-opus-4-5")  # fmt: skip
"""Models that are too old for the current forms of the tools."""
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
"""The first match applies. A wire without an entry has no hosted tools."""


def hosted_tools(runtime: Runtime) -> Mapping[str, HostedTool]:
    """Return the hosted tools of this model's provider, by name."""
    return _tools_hosted_by(runtime.api_mode, runtime.manners or runtime.provider, runtime.model)


@lru_cache(maxsize=64)
def _tools_hosted_by(mode: ApiMode, provider: str, model: str) -> Mapping[str, HostedTool]:
    """Cached, because each request asks several times for the same model."""
    found: dict[str, HostedTool] = {
        row.name: row for row in reversed(_ROWS) if _fits(row, mode, provider, model)
    }
    return MappingProxyType(found)


# Actions of hosted tools


def hosted_blocks(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the blocks that keep the actions of hosted tools."""
    return tuple(block for block in blocks if block.get("type") == HOSTED or block.get("type") in ITEMS)


def taken_back(item: Mapping[str, Any]) -> bool:
    """Return whether the provider will accept this item of the Responses wire when it is sent back: a
    rejected one would spoil every later request."""
    if str(item.get("status")) not in _STATUSES or not isinstance(item.get("id"), str):
        return False
    if item.get("type") == "web_search_call":
        action = item.get("action")
        return isinstance(action, Mapping) and str(action.get("type")) in _ACTIONS
    code, outputs = item.get("code"), item.get("outputs")
    ran = isinstance(code, str | None) and isinstance(item.get("container_id"), str)
    return ran and isinstance(outputs, list | None)


def without_thoughts(blocks: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the blocks of a message that are still sent when its thoughts are not."""
    return tuple(
        {**block, "content": [one for one in _content(block) if one["type"] not in _THOUGHTS]}
        for block in blocks
        if block.get("type") == HOSTED
    )


def content_again(blocks: Iterable[Mapping[str, Any]], text: str) -> list[dict[str, Any]] | None:
    """Return the content of a reply with hosted tools in the form that is sent back; ``None`` if no block
    keeps any. ``text``: the message's text. A tool call without a result is left out: the issuer refuses
    it."""
    found = [dict(one) for block in blocks for one in _content(block)]
    if not found:
        return None
    ended = [one.get("tool_use_id") for one in found]
    kept = [one for one in found if one["type"] != "server_tool_use" or one.get("id") in ended]
    joined = "".join(str(one.get("text", "")) for one in kept if one["type"] == "text")
    if joined.strip() == text.strip():
        return [one for one in kept if one["type"] != "text" or str(one.get("text", "")).strip()]
    fallback = [{"type": "text", "text": text}] if text.strip() else []
    return [*(one for one in kept if one["type"] != "text"), *fallback]


def words_of(item: Mapping[str, Any]) -> str:
    """Describe a hosted tool's action in one line; empty for any other item."""
    given = item.get("input") or item.get("action") or item
    given = given if isinstance(given, Mapping) else {}
    kind, name = item.get("type"), item.get("name")
    if kind == "web_search_call" or (kind == "server_tool_use" and name == "web_search"):
        asked = given.get("query") or given.get("url") or ", ".join(map(str, given.get("queries") or ()))
        return f"the provider searched the web{_quote_names(asked)}"
    if kind == "code_interpreter_call" or (kind == "server_tool_use" and "code_execution" in str(name)):
        return f"the provider ran code{_quote_names(given.get('code') or given.get('command'))}"
    return f"the provider ran {one_line(str(name), 60)}" if kind == "server_tool_use" else ""


def hosted_lines(blocks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each action of hosted tools in a message with these blocks."""
    for block in blocks:
        items = _content(block) if block.get("type") == HOSTED else (block,)
        yield from filter(None, map(words_of, items))


def _content(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the content of such a block, limited to the kinds that a reply can have besides calls: a block
    may come from anywhere."""
    content = block.get("content") if block.get("type") == HOSTED else None
    items = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list | tuple) else []
    return [one for one in items if str(one.get("type", "")).endswith(_KINDS)]


def _quote_names(words: object) -> str:
    return f": {one_line(words, _LONGEST)}" if isinstance(words, str) and words.strip() else ""


def _fits(row: ReasoningFamily | HostedTool, mode: ApiMode, provider: str, model: str) -> bool:
    """Return whether a row applies to this model of this provider on this wire."""
    name = model.lower().replace(".", "-")
    named = not row.models or any(part in name for part in row.models)
    return mode == row.mode and named and (not row.providers or provider in row.providers)
