"""Every name that is sent.

Those of OpenTelemetry are of the semantic conventions 1.41.0, the last release that had the conventions for
generative AI before they moved to a repository of their own; all of them are in Development, so they are
written here, and change when this file does. ``fsm.*`` is what is known of a turn as a state machine."""

from __future__ import annotations

VERSION = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"
SCOPE = "fsm_agent"
"""Name of the tracer and of the meter."""

# Operations; a span is called after its operation and what that is about
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

# Contents: only when they are asked for
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# Attributes of ours
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

# Metrics of the conventions, and of ours
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
"""Bounds of the buckets of durations, and of ``TOKENS`` those of tokens, as the conventions want them."""
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
"""Our names of providers that the conventions call by another one."""


def provider_of(name: str) -> str:
    """Return what the conventions call one of our providers."""
    return PROVIDERS.get(name, name)
