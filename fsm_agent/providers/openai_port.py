"""Ports for the two wires of the OpenAI SDK, through its low-level interface. The wires differ in their path
and in how a reply is parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.messages import Finish, ModelReply, ToolCall, Usage
from fsm_agent.conversation.vendors import ITEMS, taken_back, words_of
from fsm_agent.providers.chat_reply import EMPTY, ChatReply, read_calls, whole_reply
from fsm_agent.providers.failures import body_failure, event_failure, shape_failure
from fsm_agent.providers.profiles import Auth
from fsm_agent.providers.reply_values import (
    ID_CHARACTERS,
    NAME_CHARACTERS,
    mapping_of,
    mappings_of,
    place_of,
    responses_usage,
    text_of,
)
from fsm_agent.providers.sdk_port import NO_KEY, SdkPort, omitted
from fsm_agent.runtime.ports import StreamSink

# Output items of a reply on the Responses wire.


BREAK = "\n\n"
"""The separator between two messages of one reply, and between two parts of a summary."""
UNFINISHED = frozenset({"queued", "in_progress", "incomplete"})


@dataclass(slots=True)
class ResponseItem:
    """An output item that is arriving. ``whole``: the item as it was when complete."""

    kind: str
    name: str = ""
    call_id: str = ""
    item_id: str = ""
    phase: str = ""
    status: str = ""
    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    whole: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """Return the text received so far."""
        return "".join(self.texts)

    @property
    def is_narration(self) -> bool:
        """Whether the text is narration shown while the model works, rather than an answer (FMT-09)."""
        return self.phase == "commentary"


def calls_of(items: Collection[ResponseItem], unfinished: bool) -> Iterator[ToolCall]:
    """Yield the calls, each with a unique id. Unfinished calls are included only if ``unfinished``."""
    finished = [
        item
        for item in items
        if item.kind == "function_call" and (unfinished or item.status not in UNFINISHED)
    ]
    calls = read_calls((item.call_id, item.name, "".join(item.arguments)) for item in finished)
    for call, item in zip(calls, finished, strict=True):
        yield replace(call, item_id=item.item_id)


def blocks_of(items: Collection[ResponseItem], called: bool) -> Iterator[Mapping[str, Any]]:
    """Yield everything besides the text that must be sent back: encrypted reasoning and the actions of hosted
    tools, verbatim, and the phase of the text."""
    for item in items:
        if item.whole is None:
            continue
        if (
            taken_back(item.whole)
            if item.kind in ITEMS
            else item.kind == "reasoning" and _is_sealed(item.whole)
        ):
            yield item.whole
    phases = [item.phase for item in items if item.kind == "message" and item.texts and item.phase]
    if phases:
        yield {"type": "message", "phase": phases[0 if called else -1]}


def _is_sealed(whole: Mapping[str, Any]) -> bool:
    """Return whether the provider will accept this reasoning item when it is sent back. A rejected one would
    spoil every later request."""
    summary, content = whole.get("summary"), whole.get("content")
    return (
        bool(text_of(whole.get("encrypted_content")))
        and isinstance(summary, list)
        and len(texts_of(summary, "type")) == len(summary)
        and isinstance(content, list | None)
    )


def texts_of(content: Any, key: str) -> list[str]:
    """Return the texts of the parts that have this field."""
    return [text for part in mappings_of(content) if (text := text_of(part.get(key)))]


# Assemble a reply of the Responses wire from events or from one object. No SDK, no network.
#
# A reply of this wire is a list of items: messages, function calls, reasoning, and the server's own actions.
# A message of phase ``commentary`` is narration: it is shown as it arrives and kept beside calls, but is
# never the answer.


_FINISH: dict[str, Finish] = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""Finish reasons of an incomplete response; any other reason is just ``incomplete``."""
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_LEAKED = re.compile(r"(?:^|[\s>|])to=functions\.[A-Za-z_]")
"""A call that a model wrote as text in its own notation (FMT-10)."""
OTHER_WIRE = "the server answers in the form of chat completions; set api_mode to chat_completions"


class ResponsesReply:
    """A growing reply. ``feed`` takes events in order and reports deltas to the sink; ``end`` builds the
    result.

    ``now`` (wall time in seconds) and ``secrets`` are for a failure reported by the stream."""

    def __init__(self, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()) -> None:
        self._sink = sink
        self._now, self._secrets = now, tuple(secrets)
        self._items: dict[Any, ResponseItem] = {}
        self._speaker: ResponseItem | None = None
        self._status = ""
        self._reason = ""
        self._failure: Failure | None = None
        self._model: str | None = None
        self.usage: Usage | None = None
        self._takers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "response.output_item.added": self._on_item,
            "response.output_item.done": self._on_item_done,
            "response.output_text.delta": self._on_text,
            "response.refusal.delta": self._on_refusal,
            "response.reasoning_summary_text.delta": self._on_reasoning,
            "response.reasoning_text.delta": self._on_reasoning,
            "response.reasoning_summary_part.added": self._new_thought,
            "response.function_call_arguments.delta": self._on_arguments,
            "response.created": self._began,
            **dict.fromkeys(_ENDS, self._on_end),
            "error": self._on_failure,
        }

    @property
    def finished(self) -> bool:
        """Whether the response has ended, successfully or not; nothing follows."""
        return bool(self._status) or self._failure is not None

    def feed(self, event: Any) -> None:
        """Process one decoded event. Ignores events of other kinds (a ping)."""
        if not isinstance(event, Mapping):
            return
        kind = text_of(event.get("type"))
        if kind.startswith("response."):
            self._sink.alive()
        if taker := self._takers.get(kind):
            taker(event)
        elif "choices" in event:
            self._failure = shape_failure(OTHER_WIRE)

    # Events

    def _began(self, event: Mapping[str, Any]) -> None:
        self._model = text_of(mapping_of(event.get("response")).get("model")) or self._model

    def _item(self, event: Mapping[str, Any], kind: str) -> ResponseItem:
        """Return the item of an event, by its index; some servers send only its id. An unannounced item is
        created."""
        place = place_of(event.get("output_index"))
        if place is None:
            place = text_of(event.get("item_id")) or text_of(mapping_of(event.get("item")).get("id"))
        return self._items.setdefault(place, ResponseItem(kind))

    def _on_item(self, event: Mapping[str, Any]) -> None:
        given = mapping_of(event.get("item"))
        self._note(self._item(event, text_of(given.get("type"))), given)

    def _on_item_done(self, event: Mapping[str, Any]) -> None:
        given = mapping_of(event.get("item"))
        self._complete(self._item(event, text_of(given.get("type"))), given)

    def _note(self, item: ResponseItem, given: Mapping[str, Any]) -> None:
        item.kind = text_of(given.get("type")) or item.kind
        item.phase, item.status = text_of(given.get("phase")) or item.phase, text_of(given.get("status"))
        item.call_id = text_of(given.get("call_id")) or item.call_id
        item.item_id = text_of(given.get("id"))[:ID_CHARACTERS] or item.item_id
        if item.kind == "function_call" and not item.name and (name := text_of(given.get("name"))):
            item.name = name[:NAME_CHARACTERS]
            self._sink.tool(item.name)

    def _complete(self, item: ResponseItem, given: Mapping[str, Any]) -> None:
        """Process a completed item, and report what its deltas did not contain."""
        self._note(item, given)
        item.whole = given
        if item.kind == "function_call":
            arguments = given.get("arguments")
            if arguments is not None:
                item.arguments = [
                    arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                ]
        elif item.kind == "message":
            if not item.texts:
                self._say(item, "".join(texts_of(given.get("content"), "text")))
            if not item.refusals:
                item.refusals += texts_of(given.get("content"), "refusal")
        elif words := words_of(given):
            self._sink.notice(words)
        elif item.kind == "reasoning" and not item.thoughts:
            summary = BREAK.join(texts_of(given.get("summary"), "text"))
            self._think(item, summary or "".join(texts_of(given.get("content"), "text")))

    def _on_text(self, event: Mapping[str, Any]) -> None:
        self._say(self._item(event, "message"), text_of(event.get("delta")))

    def _say(self, item: ResponseItem, text: str) -> None:
        if not text:
            return
        item.texts.append(text)
        if self._speaker is not None and self._speaker is not item:
            text = BREAK + text
        self._speaker = item
        self._sink.text(text)

    def _on_refusal(self, event: Mapping[str, Any]) -> None:
        self._item(event, "message").refusals.append(text_of(event.get("delta")))

    def _on_reasoning(self, event: Mapping[str, Any]) -> None:
        self._think(self._item(event, "reasoning"), text_of(event.get("delta")))

    def _new_thought(self, event: Mapping[str, Any]) -> None:
        item = self._item(event, "reasoning")
        self._think(item, BREAK if item.thoughts else "")

    def _think(self, item: ResponseItem, text: str) -> None:
        if text:
            item.thoughts.append(text)
            self._sink.reasoning(text)

    def _on_arguments(self, event: Mapping[str, Any]) -> None:
        item, piece = self._item(event, "function_call"), text_of(event.get("delta"))
        item.arguments.append(piece)
        self._sink.arguments(item.name, piece)

    def _on_end(self, event: Mapping[str, Any]) -> None:
        self.take(mapping_of(event.get("response")), default=str(event["type"]).removeprefix("response."))

    def _on_failure(self, event: Mapping[str, Any]) -> None:
        self._failure = event_failure(event, self._now, self._secrets)

    def take(self, response: Mapping[str, Any], default: str = "completed") -> None:
        """Process the complete response. Its items are used only where none were streamed: some servers send
        none at the end."""
        self._began({"response": response})
        self.usage = responses_usage(response.get("usage")) or self.usage
        seen, output = list(self._items.values()), response.get("output")
        streamed = bool(seen) and all(item.whole is not None for item in seen)
        for index, given in enumerate(output if isinstance(output, list) and not streamed else ()):
            item = (
                seen[index] if index < len(seen) else self._items.setdefault(("end", index), ResponseItem(""))
            )
            if item.whole is None:
                self._complete(item, mapping_of(given))
        self._status = text_of(response.get("status")) or default
        self._reason = text_of(mapping_of(response.get("incomplete_details")).get("reason"))
        if self._status == "failed":
            self._failure = body_failure(
                {"error": response.get("error") or "the response failed"}, self._now, self._secrets
            )
        elif self._status == "cancelled":
            self._failure = shape_failure("the response was cancelled")
        elif self._status == "completed" and not self._items:
            self._failure = shape_failure("the response has no output")

    # Judging

    def end(self, failure: Failure | None = None) -> ModelReply | Failure:
        """Return the reply or a failure once the stream has ended; ``failure`` is the error that broke it
        off, if any.

        After its end event the reply is complete, whatever happened next. Text without one is a cut reply:
        asking again would show it twice. Nothing delivered, or a tool call in flight when the connection
        broke, is a failure. A tool call in a stream that merely ended without an end event is kept: its
        arguments may be complete."""
        if self._status and self._failure is None:
            return self._reply()
        failure = self._failure or failure
        called = any(item.kind == "function_call" for item in self._items.values())
        has_text = any(item.texts or (item.refusals and failure is None) for item in self._items.values())
        if (has_text and not called) or (failure is None and called):
            self._status = ""
            return self._reply()
        if failure is None:
            failure = Failure("transport", EMPTY, exception="EmptyStream", detail=EMPTY)
        return replace(failure, usage=self.usage)

    def _reply(self) -> ModelReply:
        finish = self._finish()
        calls = tuple(calls_of(self._items.values(), unfinished=finish in ("length", None)))
        text, finish = self._text(calls, finish)
        if finish == "stop" and calls:
            finish = "tool_calls"
        return ModelReply(
            text=text,
            reasoning=BREAK.join(filter(None, ("".join(item.thoughts) for item in self._items.values()))),
            tool_calls=calls,
            finish=finish,
            cut=finish is None,
            refusal="".join(part for item in self._items.values() for part in item.refusals) or None,
            usage=self.usage,
            model=self._model,
            blocks=tuple(blocks_of(self._items.values(), bool(calls))),
        )

    def _finish(self) -> Finish | None:
        """Return the finish reason. Only the model's own items count: hosted tools may still run."""
        if not self._status:
            return None
        if self._status == "incomplete":
            return _FINISH.get(self._reason, "incomplete")
        own = (
            item for item in self._items.values() if item.kind in ("message", "function_call", "reasoning")
        )
        waiting = self._status in UNFINISHED or any(item.status in UNFINISHED for item in own)
        return "incomplete" if waiting else "stop"

    def _text(self, calls: tuple[ToolCall, ...], finish: Finish | None) -> tuple[str, Finish | None]:
        """Return the reply's text and its finish reason, which the text may change."""
        items = [item for item in self._items.values() if item.kind == "message" and item.texts]
        if calls:
            return BREAK.join(item.text for item in items), finish
        answer = BREAK.join(item.text for item in items if not item.is_narration)
        if _LEAKED.search(answer):
            return "", "incomplete"
        if any(item.is_narration for item in items) and not answer.strip() and finish != "content_filter":
            return BREAK.join(item.text for item in items), "incomplete"
        return answer, finish


def whole_response(
    body: Any, sink: StreamSink, now: float = 0.0, secrets: Iterable[str] = ()
) -> ModelReply | Failure:
    """Parse a complete response object. Reports its text once; a missing status counts as completed."""
    if not isinstance(body, Mapping):
        return shape_failure("the response is not a JSON object", body, secrets)
    usage = responses_usage(body.get("usage"))
    if body.get("error"):
        return replace(body_failure(body, now, secrets), usage=usage)
    if "choices" in body:
        return shape_failure(OTHER_WIRE)
    if not isinstance(body.get("output"), list) or body.get("status") in ("failed", "cancelled"):
        what = (
            f"the response was {body.get('status')}" if body.get("output") else "the response has no output"
        )
        return replace(shape_failure(what, body, secrets), usage=usage)
    reply = ResponsesReply(sink, now, secrets)
    sink.alive()
    reply.take(body)
    return reply.end()


UNSAID = "An error occurred during streaming"
"""The text of an error in a stream that has no message."""


class OpenAIPort(SdkPort):
    """A port over ``openai.AsyncOpenAI``. ``auth``: ``api-key`` for the header that Azure reads, a bearer
    token for any other. Only OpenAI receives the organization and project of the environment."""

    sdk = "openai"

    def __init__(self, base_url: str, key: str = "", *, auth: Auth = "bearer", **options: Any) -> None:
        super().__init__(base_url, key, **options)
        self._auth = auth

    def _key_headers(self) -> dict[str, Any]:
        if self._auth == "api-key":
            import openai

            return {"Api-Key": self._key or NO_KEY, "Authorization": omitted(openai)}
        return {"Authorization": f"Bearer {self._key or NO_KEY}"}

    def _stream_error(self, event: Mapping[str, Any]) -> Failure | None:
        error = event["error"]
        return body_failure(error, self._now(), self._secrets, UNSAID) if error else None

    def _make(self, sdk: Any) -> Any:
        from fsm_agent.providers.transport import PreparedRequests

        client = PreparedRequests.of(sdk, "AsyncOpenAI")(**self._client_options(sdk))
        if "api.openai.com" not in self.base_url:
            client.organization = client.project = None
        client.admin_api_key = None
        return client


class OpenAIChat(OpenAIPort):
    """One model at one chat-completions endpoint. See ``SdkPort`` for its arguments."""

    path = "/chat/completions"

    def _stream_parser(self, sink: StreamSink) -> ChatReply:
        return ChatReply(sink)

    def _parse_body(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_reply(body, sink, self._now(), self._secrets)


class OpenAIResponses(OpenAIPort):
    """One model at one Responses endpoint. See ``SdkPort`` for its arguments."""

    path = "/responses"

    def _stream_parser(self, sink: StreamSink) -> ResponsesReply:
        return ResponsesReply(sink, self._now(), self._secrets)

    def _parse_body(self, body: Any, sink: StreamSink) -> ModelReply | Failure:
        return whole_response(body, sink, self._now(), self._secrets)
