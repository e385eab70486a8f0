"""The model port of ``offline:demo``: plan, call the real tools, answer from their real results.

It is deterministic and stateless: everything it knows stands in the request. It reports no usage, because it
reads no tokens: unknown is not zero."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.providers.offline.facts import fact, goes_on_at, named
from fsm_agent.providers.offline.plan import Want, plan
from fsm_agent.runtime.ports import StreamSink

NO_MODEL = "(offline demo: no language model was used)"
MAX_ROUNDS = 12
"""Rounds of tools for one request; a file to be counted is read page by page."""

HELP = """I am the offline demo: I follow a few rules and understand nothing else. Ask me for example to
- list the files in a folder: "what is in this folder?", "list docs and read README.md"
- read a file, or count its lines: "read pyproject.toml", "how many lines has README.md?"
- search: "find TODO in src", "find *.toml"
- tell the time or work something out: "what time is it in Tokyo?", "what is `12*(3+4)`?"
- run a command, if you allow it: "run `git status`"
- call a tool of yours: `lookup(city="Bern")`
For real answers choose a real model:
- set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENROUTER_API_KEY, or
- start a local server (Ollama, LM Studio, llama.cpp), or
- name one: `--model <provider>:<model>`, with `--base-url` for any server that speaks its API."""

_DELTA = re.compile(r"\s*\S{1,24}")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """One tool call that was made for the request, and its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str


class OfflineDemo:
    """A ``ModelPort`` without a model. ``pace``: seconds between two pieces of streamed text, 0 for none."""

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Decide by rule. A body that is no chat-completions request is a ``Failure`` of kind ``shape``."""
        try:
            body = json.loads(request.body)
            text, calls = _decide(body, request.purpose == "summary")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            line = f"the offline demo cannot read this request: {type(error).__name__}"
            return Failure("shape", line, exception=type(error).__name__, detail=line.lower())
        sink.alive()
        for delta in _deltas(text):
            sink.text(delta)
            await asyncio.sleep(self.pace)
        for call in calls:
            sink.tool(call.name)
            sink.arguments(call.name, call.arguments)
        return ModelReply(text, tool_calls=calls, finish="tool_calls" if calls else "stop", model="demo")

    def use_key(self, key: str) -> None:
        """It needs none."""

    async def rebuild(self) -> None:
        """It has no connection."""

    async def aclose(self) -> None:
        """It has no connection."""


def _decide(body: Row, summary: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """The text of the reply, or its calls."""
    rows: Sequence[Row] = body["messages"]
    offered = {
        tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in body.get("tools") or ()
    }
    if summary:
        return _signed(_summary(rows)), ()
    start = _newest_request(rows, bool(offered))
    wants, made = plan(_text(rows[start]), offered), list(_made(rows[start + 1 :]))
    if offered and _rounds(rows[start + 1 :]) < MAX_ROUNDS:
        missing = list(_missing(wants, made, offered))
        if missing:
            return "", tuple(_call(want, len(rows), n) for n, want in enumerate(missing))
    return _signed(_answer(wants, made, offered)), ()


def _newest_request(rows: Sequence[Row], tools: bool) -> int:
    """Where the user's newest request is. Without tools the last words may be the engine's, which asks for a
    last word: then it is the request before, for which tools were called."""
    users = [index for index, row in enumerate(rows) if row["role"] == "user"]
    if not users:
        return len(rows) - 1
    if not tools and len(users) > 1 and any(row.get("tool_calls") for row in rows[users[-2] : users[-1]]):
        return users[-2]
    return users[-1]


def _made(rows: Sequence[Row]) -> Iterator[Made]:
    results = {row.get("tool_call_id"): _text(row) for row in rows if row["role"] == "tool"}
    for row in rows:
        for call in row.get("tool_calls") or ():
            if call["id"] in results:
                arguments = json.loads(call["function"]["arguments"] or "{}")
                yield Made(call["function"]["name"], arguments, results[call["id"]])


def _rounds(rows: Sequence[Row]) -> int:
    return sum(bool(row.get("tool_calls")) for row in rows)


def _missing(wants: Sequence[Want], made: Sequence[Made], offered: Mapping[str, Any]) -> Iterator[Want]:
    """What to call next: everything of the first stage that is not complete."""
    for stage in sorted({want.stage for want in wants}):
        found = [step for want in wants if want.stage == stage and (step := _next(want, made))]
        if usable := [want for want in found if want.tool in offered]:
            yield from usable
            return


def _next(want: Want, made: Sequence[Made]) -> Want | None:
    """The call that a want needs now: the first one, the other tool for a path that is of the other kind, or
    the next page of a file whose lines are counted. ``None`` when it has all it needs."""
    want, results = _pursued(want, made)
    if not results:
        return want
    line = goes_on_at(results[-1]) if want.kind == "count" else None
    return replace(want, arguments={**want.arguments, "start_line": line}) if line else None


def _pursued(want: Want, made: Sequence[Made]) -> tuple[Want, list[str]]:
    """A want as it turned out to be, and its results so far, page by page."""
    results = [call.result for call in made if call.name == want.tool and _same(call, want)]
    if results and want.kind == "read" and "is a directory" in results[0]:
        return _pursued(replace(want, kind="list", tool="list_directory"), made)
    if results and want.kind == "list" and "is a file; use read_file" in results[0]:
        return _pursued(replace(want, kind="read", tool="read_file"), made)
    return want, results


def _same(call: Made, want: Want) -> bool:
    page = {"start_line"} if want.kind == "count" else set()
    return {key: value for key, value in call.arguments.items() if key not in page} == want.arguments


def _answer(wants: Sequence[Want], made: Sequence[Made], offered: Mapping[str, Any]) -> str:
    if not wants:
        return HELP
    parts = []
    for want in wants:
        found, results = _pursued(want, made)
        if results:
            parts.append(fact(found, results))
        elif want.tool not in offered and offered:
            parts.append(
                f"For {named(want.subject)} I would need the tool {want.tool}, which is not on offer."
            )
        else:
            why = "no rounds are left" if offered else "no tool is on offer"
            parts.append(f"I did not get to {named(want.subject)}: {why}.")
    return "\n\n".join(parts)


def _summary(rows: Sequence[Row]) -> str:
    """The asked-for summary of a long conversation: the requests in it, word for word and shortened."""
    asked = re.findall(r"<user>\n(.*?)\n</user>", _text(rows[-1]), re.DOTALL)
    lines = [f"- the user asked: {' '.join(text.split())[:200]}" for text in asked[-20:]]
    return "\n".join(["Summary by rule of the conversation so far:", *lines])


def _call(want: Want, position: int, number: int) -> ToolCall:
    return ToolCall(
        f"offline_{position}_{number}", want.tool, json.dumps(dict(want.arguments), ensure_ascii=False)
    )


def _text(row: Row) -> str:
    content = row.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def _signed(text: str) -> str:
    return f"{text}\n\n{NO_MODEL}"


def _deltas(text: str) -> Iterator[str]:
    """Small pieces that make up the text exactly."""
    end = 0
    for piece in _DELTA.finditer(text):
        yield piece[0]
        end = piece.end()
    if text[end:]:
        yield text[end:]
