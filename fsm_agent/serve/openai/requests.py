"""Reads the bodies of requests to ``/v1/responses`` and ``/v1/chat/completions``.

An unsupported parameter is refused if it would change the answer. One that only hints at how a model should
sample is ignored, and named in a header. The agent's operator decides about models, tools, and sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from fsm_agent.conversation.parts import part_of, text_only
from fsm_agent.dispatch.service import BadRequest
from fsm_agent.errors import ConfigError
from fsm_agent.output import JsonSchema
from fsm_agent.serve.openai.responses import TEXT_FORMAT
from fsm_agent.support.texts import is_regular

Row = dict[str, Any]
SYSTEM = ("system", "developer")
HINTS = frozenset((
    "temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "max_tokens",
    "max_output_tokens", "max_completion_tokens", "max_tool_calls", "parallel_tool_calls", "service_tier",
    "user", "verbosity",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "truncation",
    "include", "reasoning_effort", "store", "context_management", "image", "prediction",
))  # fmt: skip
"""Parameters that change nothing here."""
KNOWN = frozenset(("model", "stream", "stream_options", "metadata"))
RESPONSES = frozenset(("input", "instructions", "previous_response_id", "text", "reasoning", "background"))
CHAT = frozenset(("messages", "response_format"))
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "logprobs": (False,), "top_logprobs": (0,), "logit_bias": ({},), "stop": ([],),
    "tools": ([],), "functions": ([],), "tool_choice": ("auto", "none"), "function_call": ("auto", "none"),
    "modalities": (["text"],),
}  # fmt: skip
"""Unsupported parameters, with the values that request nothing."""
TOOLS_ARE_OURS = (
    "this server's agent runs its own tools and hands none to the client; allowed: a request without {name}."
    " The operator adds tools to the agent"
)
METADATA = "16 texts of 512 characters under names of 64"


class InvalidRequest(BadRequest):
    """A request that cannot be used. ``param``: the parameter at fault, ``code``: one word for programs."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        self.param, self.code = param, code
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to one question of a suspended turn."""

    pending: str
    approve: bool


@dataclass(slots=True)
class Asked:
    """A parsed request. ``content``: of the user's last message; empty without one. ``history``: the rows
    before it, ``None`` without any. ``instructions``: for this turn alone. ``schema``: of the answer,
    ``format`` as the client wrote it. ``ignored``: parameters that change nothing."""

    model: str
    content: list[Any] = field(default_factory=list)
    history: list[Row] | None = None
    instructions: str = ""
    schema: dict[str, Any] | None = None
    format: Mapping[str, Any] = field(default_factory=lambda: TEXT_FORMAT)
    stream: bool = False
    usage: bool = False
    thoughts: bool = False
    previous: str | None = None
    background: bool = False
    metadata: dict[str, str] = field(default_factory=dict)
    approvals: list[Approval] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    @property
    def message(self) -> Any:
        """Return the content as ``Agent.start`` takes it: a text if all parts are text."""
        if all(part.get("type") == "text" for part in self.content):
            return "\n\n".join(str(part["text"]) for part in self.content)
        return self.content


def read_response(body: Mapping[str, Any]) -> Asked:
    """Read a request for a response. Raises ``InvalidRequest``."""
    asked = _read_common(body, RESPONSES)
    asked.previous = _optional(body, "previous_response_id", str, "a text")
    asked.background = bool(_optional(body, "background", bool, "true or false"))
    asked.instructions = _optional(body, "instructions", str, "a text") or ""
    reasoning = _optional(body, "reasoning", dict, "an object") or {}
    asked.thoughts = bool(reasoning.get("summary") or reasoning.get("generate_summary"))
    text = _optional(body, "text", dict, "an object") or {}
    if (form := text.get("format")) is not None:
        _read_format(asked, form, form, "text.format")
    given = body.get("input")
    if isinstance(given, str):
        asked.content = _parts(given, "input")
    elif isinstance(given, list):
        _read_items(asked, given)
    elif given is not None or asked.previous is None:
        raise InvalidRequest("input is neither a text nor a list of items", "input", "invalid_type")
    if not asked.content and not asked.approvals and asked.previous is None:
        raise InvalidRequest("there is no message of the user in the input", "input", "missing_message")
    return asked


def read_completion(body: Mapping[str, Any]) -> Asked:
    """Read a request for a chat completion. Raises ``InvalidRequest``."""
    asked = _read_common(body, CHAT)
    if (form := body.get("response_format")) is not None:
        schema = form.get("json_schema") if isinstance(form, dict) else None
        _read_format(asked, form, schema, "response_format")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages is not a list of messages", "messages", "invalid_type")
    rows = [_row_of_message(asked, row, f"messages[{n}]") for n, row in enumerate(messages)]
    _split(asked, [row for row in rows if row is not None], "messages")
    if not asked.content:
        raise InvalidRequest("the last message is not the user's", "messages", "missing_message")
    return asked


def _read_common(body: Mapping[str, Any], more: frozenset[str]) -> Asked:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is not a name of a model", "model", "missing_model")
    asked = Asked(model, stream=bool(_optional(body, "stream", bool, "true or false")))
    options = _optional(body, "stream_options", dict, "an object") or {}
    asked.usage = bool(options.get("include_usage"))
    metadata = _optional(body, "metadata", dict, "an object of texts") or {}
    fits = all(
        isinstance(value, str) and len(value) <= 512 and len(name) <= 64 for name, value in metadata.items()
    )
    if not fits or len(metadata) > 16:
        raise InvalidRequest(f"metadata does not fit; allowed: {METADATA}", "metadata")
    asked.metadata = metadata
    for name, value in body.items():
        if value is None or name in KNOWN or name in more:
            continue
        if name in HINTS:
            if name != "store" or value is False:  # every turn is stored
                asked.ignored.append(name)
        elif value not in NEUTRAL.get(name, ()):
            _refuse(name)
    return asked


def _refuse(name: str) -> None:
    if name in ("tools", "functions", "tool_choice", "function_call"):
        raise InvalidRequest(TOOLS_ARE_OURS.format(name=name), name, "unsupported_parameter")
    if name in NEUTRAL:
        neutral = ", ".join(json.dumps(one) for one in NEUTRAL[name])
        raise InvalidRequest(
            f"this server cannot do {name}; allowed: {neutral}", name, "unsupported_parameter"
        )
    raise InvalidRequest(f"there is no parameter {name[:80]!r} here", name[:80], "unknown_parameter")


def _optional(body: Mapping[str, Any], name: str, kind: type, what: str) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name} is not {what}", name, "invalid_type")
    return value


def _read_format(asked: Asked, form: Any, described: Any, where: str) -> None:
    kind = form.get("type") if isinstance(form, dict) else None
    match kind:
        case "text":
            return
        case "json_object":
            name, schema = "answer", {"type": "object"}
        case "json_schema" if isinstance(described, dict) and isinstance(described.get("schema"), dict):
            name, schema = str(described.get("name") or "answer"), described["schema"]
        case _:
            raise InvalidRequest(
                f"{where} is not usable; allowed: text, json_object, json_schema with a name and a schema",
                where,
            )
    try:
        check_schema(schema, name)
    except ConfigError as error:
        raise InvalidRequest(str(error), where, "invalid_json_schema") from None
    asked.format, asked.schema = form, {"schema": schema, "name": name}


# Items of the Responses wire


def _read_items(asked: Asked, items: Sequence[Any]) -> None:
    rows: list[Row] = []
    calls: dict[str, str] = {}
    for number, item in enumerate(items):
        where = f"input[{number}]"
        if not isinstance(item, dict):
            raise InvalidRequest(f"{where} is not an item", where, "invalid_type")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            if (row := _row_of_message(asked, item, where)) is not None:
                rows.append(row)
        elif kind == "mcp_approval_response":
            pending, approve = item.get("approval_request_id"), item.get("approve")
            if not isinstance(pending, str) or not isinstance(approve, bool):
                raise InvalidRequest(f"{where} says neither yes nor no to a request", where)
            asked.approvals.append(Approval(pending, approve))
        elif kind == "mcp_call":
            rows += _rows_of_call(item, str(item.get("id")), where)
            rows.append(_result_row(str(item.get("id")), item.get("output") or item.get("error") or ""))
        elif kind == "function_call":
            rows += _rows_of_call(item, str(item.get("call_id")), where)
            calls[str(item.get("call_id"))] = str(item.get("name"))
        elif kind == "function_call_output" and str(item.get("call_id")) in calls:
            rows.append(_result_row(str(item["call_id"]), item.get("output")))
        elif kind not in ("reasoning", "mcp_approval_request", "mcp_list_tools"):
            known = "message, mcp_approval_response, and items of earlier responses"
            raise InvalidRequest(f"{where} is of type {str(kind)[:40]!r}; allowed: {known}", where)
    _split(asked, rows, "input")


def _rows_of_call(item: Mapping[str, Any], call_id: str, where: str) -> list[Row]:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise InvalidRequest(f"{where} is not a call", where)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def _result_row(call_id: str, output: Any) -> Row:
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# Messages of both wires


def _row_of_message(asked: Asked, row: Any, where: str) -> Row | None:
    """Return a row of the history; add a system row to the instructions instead."""
    role = row.get("role") if isinstance(row, dict) else None
    if role in SYSTEM:
        text = text_only(_parts(row.get("content"), where))
        asked.instructions = "\n\n".join(filter(None, (asked.instructions, text)))
        return None
    if role == "user":
        return {"role": "user", "content": _parts(row.get("content"), where)}
    if role == "assistant":
        result: Row = {"role": "assistant", "content": None}
        if row.get("content") is not None:
            result["content"] = text_only(_parts(row["content"], where))
        if row.get("tool_calls"):
            result["tool_calls"] = row["tool_calls"]
        return result
    if role == "tool" and isinstance(row.get("tool_call_id"), str):
        return _result_row(row["tool_call_id"], text_only(_parts(row.get("content"), where)))
    raise InvalidRequest(
        f"{where} has no role that is known; allowed: system, developer, user, assistant, tool", where
    )


def _parts(content: Any, where: str) -> list[Any]:
    given = [content] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise InvalidRequest(f"{where} has no content", where, "invalid_type")
    try:
        return [dict(part_of(part)) for part in given]
    except ConfigError as error:
        raise InvalidRequest(str(error), where) from None


def _split(asked: Asked, rows: list[Row], where: str) -> None:
    """Split rows into the prompt, which is the user's last messages, and the history before it."""
    end = len(rows)
    while end and rows[end - 1]["role"] == "user":
        end -= 1
    asked.content = [part for row in rows[end:] for part in row["content"]]
    if asked.previous is not None and end:
        raise InvalidRequest(
            f"{where} has messages that are not the user's; with previous_response_id the history is here",
            where,
        )
    asked.history = rows[:end] or None


# The schema of an answer is a program of the client that runs here, for each answer. Two things can make it
# slow: a regular expression that backtracks, and references that multiply. RE2 matches the first, a count
# refuses the second.


MOST = 10_000
"""Subschemas that one value may be checked against, references included."""
UNUSABLE = ("patternProperties", "$dynamicRef", "$anchor", "$dynamicAnchor")
_BY_NAME = ("properties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = (
    "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def check_schema(schema: Mapping[str, Any], name: str) -> None:
    """Raise ``ConfigError`` for an invalid JSON schema, and for one that may be slow."""
    JsonSchema(schema, name)
    if _Counter(schema).weight(schema) > MOST:
        raise ConfigError(
            "the schema is too large",
            None,
            f"{MOST:,} subschemas, each counted as often as it is referred to",
        )


class _Counter:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def weight(self, schema: Any) -> int:
        """Return the number of subschemas that a value is checked against; at most ``MOST`` + 1."""
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in self._known:
            return self._known[id(schema)]
        self._known[id(schema)] = 1  # for a schema that refers to itself
        self._refuse(schema)
        total = 1 + sum(self.weight(below) for below in _below(schema))
        if (reference := schema.get("$ref")) is not None:
            total += self.weight(self._target(reference))
        self._known[id(schema)] = total = min(total, MOST + 1)
        return total

    def _refuse(self, schema: Mapping[str, Any]) -> None:
        for word in UNUSABLE:
            if word in schema:
                raise ConfigError(f"{word} is not read in a schema", None, "properties, $defs and $ref")
        if "$id" in schema and schema is not self._root:
            raise ConfigError("$id is read at the top of a schema alone", str(schema["$id"])[:80])
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and not is_regular(pattern):
            raise ConfigError("the pattern cannot be matched quickly", pattern[:80], "the syntax of RE2")

    def _target(self, reference: str) -> Any:
        found: Any = self._root
        steps = reference.removeprefix("#").removeprefix("/").split("/") if reference != "#" else []
        for step in steps:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        if not reference.startswith("#") or not isinstance(found, Mapping | bool):
            raise ConfigError("a reference of the schema leads nowhere", reference[:80], "#/$defs/NAME")
        return found


def _below(schema: Mapping[str, Any]) -> Iterator[Any]:
    for word in _BY_NAME:
        named = schema.get(word)
        if isinstance(named, Mapping):
            yield from named.values()
    for word in _LISTS:
        yield from schema.get(word) or ()
    for word in _SINGLE:
        if word in schema:
            yield schema[word]
