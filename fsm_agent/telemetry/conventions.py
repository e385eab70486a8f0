"""Every name that is sent.

OpenTelemetry names follow the semantic conventions 1.41.0, the last release that contained the conventions
for generative AI before they moved to their own repository. All of them have the status Development, so they
are defined here and change only with this file. ``fsm.*`` describes a turn as a state machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fsm_agent.conversation.effects import ModelRequest
from fsm_agent.conversation.messages import ModelReply
from fsm_agent.support.redaction import mask, mask_json

VERSION = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"
SCOPE = "fsm_agent"
"""Name of the tracer and of the meter."""

# Operations; a span's name is its operation and the operation's object
INVOKE_AGENT, CHAT, EXECUTE_TOOL = "invoke_agent", "chat", "execute_tool"
STATE, COMPACT, WAIT, APPROVAL, PROGRAM = "state", "compact", "wait", "ask_approval", "answer_program"

# Attributes of the conventions
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
OUTPUT_TYPE = "gen_ai.output.type"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - no secret
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
HTTP_STATUS = "http.response.status_code"
SESSION = "session.id"

# Contents, sent only on request
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Our own attributes
FSM_TURN = "fsm.turn.id"
FSM_STATE = "fsm.state"
FSM_SEQ = "fsm.seq"
FSM_EVENT = "fsm.event"
FSM_ROW = "fsm.row"
FSM_DEST = "fsm.dest"
FSM_GUARDS = "fsm.guards"
FSM_CHANGES = "fsm.changes"
FSM_COUNTER = "fsm.counter."
FSM_EXIT = "fsm.exit"
FSM_OUTCOME = "fsm.outcome"
FSM_SUSPENDED = "fsm.suspended"
FSM_UNFINISHED = "fsm.unfinished"
FSM_CANCELLED = "fsm.cancelled"
FSM_REQUESTS = "fsm.requests"
FSM_ITERATIONS = "fsm.iterations"
FSM_COST = "fsm.cost.usd"
FSM_COST_STATUS = "fsm.cost.status"
FSM_FALLBACK = "fsm.fallback"
FSM_COMPACTION = "fsm.compaction."
FSM_PURPOSE = "fsm.purpose"
FSM_ATTEMPT = "fsm.attempt"
FSM_SENT = "fsm.sent"
FSM_CUT = "fsm.cut"
FSM_FAILURE = "fsm.failure.kind"
FSM_FAILURE_CLASS = "fsm.failure.class"
FSM_EFFECT = "fsm.tool.effect"
FSM_STATUS = "fsm.tool.status"
FSM_WAITED = "fsm.waited"
FSM_GRANTED = "fsm.approval.granted"
FSM_LINK = "fsm.link"

# Metrics of the conventions, and our own
OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - no secret
TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TURN_EXITS = "fsm.turn.exits"
TURN_COST = "fsm.turn.cost"
TURNS_RUNNING = "fsm.turns.running"
RETRIES = "fsm.retries"
FALLBACKS = "fsm.fallbacks"
COMPACTIONS = "fsm.compactions"
QUEUE_WAIT = "fsm.queue.wait"
TAKEOVERS = "fsm.takeovers"
FENCED_WRITES = "fsm.store.fenced_writes"
COMMIT_DURATION = "fsm.store.commit.duration"

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Histogram bucket bounds for durations, and in ``TOKENS`` for tokens, as the conventions require."""
TOKENS = tuple(4**power for power in range(14))
SHORT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

PROVIDERS = {
    "openai-responses": "openai",
    "bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "vertex": "gcp.vertex_ai",
}
"""Providers that the conventions name differently."""


def provider_of(name: str) -> str:
    """Return the conventions' name for one of our providers."""
    return PROVIDERS.get(name, name)


# ----------------------------------------------------------------------------------------------------
# Texts of people, models, and tools in the format of the conventions, with secrets redacted: JSON for span
# attributes.


Part = Mapping[str, Any]
ASKED = ("messages", "input")
"""Keys of the conversation in request bodies."""
TEXTS = ("text", "input_text", "output_text", "refusal")


def as_json(value: Any) -> str:
    """Encode a value as JSON with secrets redacted."""
    return json.dumps(mask_json(value), ensure_ascii=False, default=str)


def mask_words(words: str) -> str:
    """Redact secrets in a text."""
    return mask(words)


def of_request(request: ModelRequest) -> dict[str, str]:
    """Return the attributes of a model request, read from its body in any of the wire formats."""
    try:
        body = json.loads(request.body)
    except ValueError:
        return {}
    if not isinstance(body, Mapping):
        return {}
    rows: Any = next((body[name] for name in ASKED if name in body), [])
    rows = [{"role": "user", "content": rows}] if isinstance(rows, str) else rows
    attributes = {INPUT_MESSAGES: as_json([_message(row) for row in rows if isinstance(row, Mapping)])}
    if prompt := body.get("system") or body.get("instructions"):
        attributes[SYSTEM_INSTRUCTIONS] = as_json(list(_parts(prompt)))
    if tools := body.get("tools"):
        attributes[TOOL_DEFINITIONS] = as_json(tools)
    return attributes


def of_reply(reply: ModelReply) -> dict[str, str]:
    """Return the attributes of a model's reply."""
    parts: list[Part] = []
    if reply.reasoning:
        parts.append({"type": "reasoning", "content": reply.reasoning})
    if reply.text:
        parts.append(_text(reply.text))
    parts += [_call(one.id, one.name, one.arguments) for one in reply.tool_calls]
    answer = {"role": "assistant", "parts": parts, "finish_reason": reply.finish or ""}
    return {OUTPUT_MESSAGES: as_json([answer])}


def of_turn(attribute: str, role: str, words: str) -> dict[str, str]:
    """Return the attribute for a user's message, or for the answer to it."""
    return {attribute: as_json([{"role": role, "parts": [_text(words)]}])}


def _message(row: Part) -> Part:
    kind = row.get("type")
    if kind == "function_call":
        return {"role": "assistant", "parts": [_call(row.get("call_id"), row.get("name"), row["arguments"])]}
    if kind == "function_call_output":
        return {"role": "tool", "parts": [_result(row.get("call_id"), row.get("output"))]}
    if kind == "reasoning":
        return {"role": "assistant", "parts": [{"type": "reasoning", "content": ""}]}
    if row.get("role") == "tool":
        return {"role": "tool", "parts": [_result(row.get("tool_call_id"), row.get("content"))]}
    parts = list(_parts(row.get("content")))
    for call in row.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    return {"role": row.get("role", "user"), "parts": parts}


def _parts(content: Any) -> Iterator[Part]:
    if content is None:
        return
    for piece in content if isinstance(content, list) else [content]:
        if not isinstance(piece, Mapping):
            yield _text(str(piece))
        elif piece.get("type") in TEXTS:
            yield _text(str(piece.get("text") or piece.get("refusal") or ""))
        elif piece.get("type") == "tool_use":
            yield _call(piece.get("id"), piece.get("name"), piece.get("input"))
        elif piece.get("type") == "tool_result":
            yield _result(piece.get("tool_use_id"), piece.get("content"))
        elif piece.get("type") in ("thinking", "redacted_thinking"):
            yield {"type": "reasoning", "content": str(piece.get("thinking") or "")}
        else:  # an image or a document: its bytes are useless here
            yield {"type": str(piece.get("type"))}


def _text(words: str) -> Part:
    return {"type": "text", "content": words}


def _call(id: Any, name: Any, arguments: Any) -> Part:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _result(id: Any, content: Any) -> Part:
    words = content if isinstance(content, str) else [part.get("content", "") for part in _parts(content)]
    return {"type": "tool_call_response", "id": id, "response": words}
