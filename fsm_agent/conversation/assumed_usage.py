"""What a request is taken to have used when its provider did not say."""

from __future__ import annotations

from fsm_agent.conversation.effects import Cancelled, Failure, ModelRequest
from fsm_agent.conversation.messages import NO_USAGE, ModelReply, Usage
from fsm_agent.conversation.wire import tokens_of


def assumed_usage(request: ModelRequest, reply: ModelReply | Failure | Cancelled) -> Usage:
    """Return the estimate of its prompt, and of what had arrived of its reply; nothing for a request that did
    not leave, and for one that a provider refused."""
    match reply:
        case Failure(kind="http") | Failure(sent=False) | Cancelled(sent=False):
            return NO_USAGE
        case ModelReply():
            calls = (call.name + call.arguments for call in reply.tool_calls)
            arrived = [reply.text, reply.reasoning, *calls]
        case Cancelled():
            arrived = [reply.text, reply.reasoning]
        case Failure():
            arrived = []
    return Usage(input=request.estimate, output=tokens_of(sum(map(len, arrived))))
