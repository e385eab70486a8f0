"""Putting a reply of the chat-completions wire together, from chunks or from one object. No SDK, no
network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import Finish, ModelReply, Usage
from fsm_agent.providers.failures import body_failure, shape_failure
from fsm_agent.providers.fields import mappings_of, text_of
from fsm_agent.providers.reasoning import Reasoning, split_content
from fsm_agent.providers.tool_calls import CallSlots
from fsm_agent.providers.usage import usage_from
from fsm_agent.runtime.ports import StreamSink

_FINISH: dict[str, Finish] = {
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "stop_sequence"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(
        (
            "content_filter",
            "safety",
            "recitation",
            "sensitive",
            "refusal",
            "guardrail_intervened",
            "blocklist",
        ),
        "content_filter",
    ),
}
EMPTY = "empty stream: it ended before anything was said"
_BROKEN = frozenset({"error", "network_error", "insufficient_system_resource"})
"""Finish reasons that say the provider broke off: the reply counts as cut."""


class ChatReply:
    """A reply as it grows. ``feed`` takes chunks in order and reports deltas to the sink; ``end`` judges what
    came."""

    def __init__(self, sink: StreamSink) -> None:
        self._sink = sink
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning = Reasoning()
        self._calls = CallSlots()
        self._finish: Finish | None = None
        self._model: str | None = None
        self.usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """A finish reason has come; at most the usage follows."""
        return self._finish is not None

    def feed(self, chunk: Any) -> None:
        """Take one decoded chunk. Anything that is no chunk (a ping, null) is passed over."""
        if not isinstance(chunk, dict) or not chunk:
            return
        self._sink.alive()
        self._model = text_of(chunk.get("model")) or self._model
        if usage := chunk.get("usage"):
            self.usage = usage_from(usage) or self.usage
        for choice in mappings_of(chunk.get("choices")):
            if choice.get("index") in (0, None):
                self._choice(choice)

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._delta(delta)
        if reason := text_of(choice.get("finish_reason")).lower():
            self._finish = None if reason in _BROKEN else _FINISH.get(reason, "stop")

    def _delta(self, delta: Mapping[str, Any]) -> None:
        text, thinking = split_content(delta.get("content"))
        if thinking := self._reasoning.feed(delta) + thinking:
            self._reasoning.add(thinking)
            self._sink.reasoning(thinking)
        if text:
            self._text.append(text)
            self._sink.text(text)
        if refusal := text_of(delta.get("refusal")):
            self._refusal.append(refusal)
        for call in mappings_of(delta.get("tool_calls")):
            if name := self._calls.feed(call):
                self._sink.tool(name)
            self._sink.arguments(*self._calls.newest)

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """What the request brought, once nothing more comes; ``failure`` is what broke it off, if anything
        did.

        After a finish reason the reply is whole, whatever happened next. Text without one is a cut reply:
        asking again would show it twice. Nothing delivered, or a tool call in flight when the connection
        broke, is a failure. A tool call in a stream that merely ended without saying why is kept: its
        arguments may be whole."""
        if self._finish is not None:
            return self._reply()
        if failure is None and (self._text or self._calls or self._refusal):
            return self._reply()
        if failure is not None and self._text and not self._calls:
            return self._reply()
        if failure is None:
            failure = Failure("transport", EMPTY, exception="EmptyStream", detail=EMPTY)
        return replace(failure, usage=self.usage)

    def _reply(self) -> ModelReply:
        calls, finish = self._calls.calls(), self._finish
        if finish in ("stop", "tool_calls"):
            finish = "tool_calls" if calls else "stop"
        return ModelReply(
            text="".join(self._text),
            reasoning=self._reasoning.text,
            tool_calls=calls,
            finish=finish,
            cut=finish is None,
            refusal="".join(self._refusal) or None,
            usage=self.usage,
            model=self._model,
            blocks=self._reasoning.blocks,
        )


def whole_reply(
    body: Any, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()
) -> ModelReply | Failure:
    """Read one complete object. Its text is reported to the sink once; a finish reason that is missing counts
    as stop.

    ``now`` (wall time in seconds) and ``secrets`` serve the failure: a body without choices.
    """
    if not isinstance(body, Mapping):
        return shape_failure("the response is no JSON object", body, secrets)
    choices, usage = body.get("choices"), usage_from(body.get("usage"))
    if not choices and body.get("error"):
        return replace(body_failure(body, now, secrets), usage=usage)
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping) or not isinstance(first.get("message"), Mapping):
        return replace(shape_failure("the response has no choices", body, secrets), usage=usage)
    reply = ChatReply(sink)
    reply.feed(
        body if first.get("finish_reason") else {**body, "choices": [{**first, "finish_reason": "stop"}]}
    )
    return reply.end()
