"""A server of the chat-completions wire that refuses what its model cannot take, and counts what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.helpers.http_server import Answer, Asked, HttpServer

Body = dict[str, Any]


@dataclass
class Picky:
    """The limits of this model: tokens of prompt and of a reply, images, streams, parameters. ``lies``: it
    names this window instead of its own. ``cuts``: how many replies end too early."""

    window: int = 1_000_000
    output: int = 1_000_000
    images: bool = True
    streams: bool = True
    unknown: tuple[str, ...] = ()
    lies: int | None = None
    cuts: int = 0
    url: str = ""
    bodies: list[Body] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return len(self.bodies)

    def refusal(self, body: Body, tokens: int) -> str:
        """Why this request is refused, as servers say it; empty when it is not."""
        cap = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        if tokens > self.window or (self.lies is not None and not self.refused):
            named = self.lies or self.window
            return (
                f"This model's maximum context length is {named} tokens. However, your messages resulted in"
                f" {tokens} tokens. Please reduce the length of the messages."
            )
        if cap > self.output:
            return f"max_tokens is too large: {cap}. This model supports at most {self.output} completion tokens."
        if not self.images and "image_url" in json.dumps(body["messages"]):
            return "this model does not support image input"
        if not self.streams and body.get("stream"):
            return "streaming is not supported for this model"
        return next((f"Unsupported parameter: '{name}' is not supported with this model." for name in self.unknown
                     if name in body), "")  # fmt: skip


@contextmanager
def picky(**takes: Any) -> Iterator[Picky]:
    """Serve such a model until the block ends."""
    model = Picky(**takes)

    def answer(asked: Asked) -> Answer:
        body = asked.body
        tokens = len(json.dumps(body["messages"])) // 4
        model.bodies.append(body)
        if why := model.refusal(body, tokens):
            model.refused.append(why)
            return whole({"error": {"message": why, "type": "invalid_request_error"}}, 400)
        model.cuts, finish = model.cuts - 1, "length" if model.cuts > 0 else "stop"
        usage = {"prompt_tokens": tokens, "completion_tokens": 3, "total_tokens": tokens + 3}
        said = {"role": "assistant", "content": "fine"}
        if not body.get("stream"):
            return whole(
                {"choices": [{"message": said, "index": 0, "finish_reason": finish}], "usage": usage}
            )
        chunks = (
            {"choices": [{"index": 0, "delta": said}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
            {"choices": [], "usage": usage},
        )
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return Answer(200, "".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")

    with HttpServer(answer) as server:
        model.url = f"{server.root}/v1"
        yield model


def whole(value: Body, status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode(), "application/json")
