"""How much a provider may say at once. Not settings: whoever needs more has met an attack, or a new kind of
model, for which these figures are to be raised for everybody.

What a reply is made of is limited in ``fsm_agent.settings.model.Tools`` (``max_calls``), what arrives of it
here, and how long it may take by ``Timeout`` and ``Stale``."""

from __future__ import annotations

import json
from dataclasses import replace

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import ModelReply

STREAM_BYTES = 64_000_000
"""Of a stream, unpacked: 128,000 tokens, the most that models write today, in events of 500 bytes."""
EVENT_BYTES = 8_000_000
"""Of one event: the last of a Responses stream repeats the whole reply, with the tools it was offered."""
WHOLE_BYTES = 16_000_000
"""Of a reply that comes as one object."""
ERROR_BYTES = 64_000
"""Of an error; what is behind them is not read. Classes are told by words that come first."""
EVENTS = 1_000_000
"""Of one stream: eight for each token of the longest reply."""
CHARACTERS = 4_000_000
"""Of text, reasoning and arguments together: eight times the longest reply."""
ID_CHARACTERS, NAME_CHARACTERS = 20_000, 1_000
"""Of a call's id, in which some gateways hide a signature, and of its name, behind which some models write
arguments; what is longer is cut, or replaced."""


def too_much(why: str) -> Failure:
    """The failure of a reply over one of these limits; ``why`` with "it" for the provider."""
    return Failure("shape", f"the reply was given up: {why}", exception="ReplyTooLarge", code="over_limit",
                   detail="the reply was given up: over a limit")  # fmt: skip


def within_limits(reply: ModelReply | Failure) -> ModelReply | Failure:
    """The reply itself, or a failure when it is longer than anybody means one to be."""
    if isinstance(reply, Failure):
        return reply
    said = len(reply.text) + len(reply.reasoning) + sum(len(call.arguments) for call in reply.tool_calls)
    if reply.blocks:
        said += len(json.dumps(reply.blocks))
    if said <= CHARACTERS:
        return reply
    return replace(too_much(f"it has {said:,} characters, more than {CHARACTERS:,}"), usage=reply.usage)
