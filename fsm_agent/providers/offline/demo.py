"""The model port of ``offline:demo``: plan, call the real tools, answer from their real results.

It is deterministic and stateless: everything it knows stands in the request. It reports no usage, because it
reads no tokens: unknown is not zero.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.providers.offline.plan import Kind, Want, plan
from fsm_agent.runtime.ports import StreamSink

# ----------------------------------------------------------------------------------------------------
# From the text of a tool's result to a sentence with facts in it, in Markdown. The forms read here are the
# core toolset's.


SHOWN = 12
_NUMBERED = re.compile(r"^(\d+)(?:\t(.*))?$")  # blanks at the very end of a result do not go over the wire
_MORE = re.compile(r"^\[more lines follow; go on with start_line=(\d+)\]$", re.MULTILINE)
_MARKUP = re.compile(r"`|\*.*\*|(?<!\w)_|_(?!\w)|~~|\]\(|<[a-zA-Z/!]|&#?\w+;|\\[!-/:-@\[-`{-~]", re.DOTALL)
"""What Markdown may not show as it is written."""
_ADORNS = re.compile(r"\s*(?:#|!?\[!?\[|!\[|<|[-=*_]{3,}\s*$)")
"""Begins a line of a Markdown file that is no sentence: a heading, a picture, a badge, HTML, a rule."""


def fact(want: Want, results: Sequence[str]) -> str:
    """What the results of a want say; several results are the pages of one file."""
    return _FACTS[want.kind](want, results)


def goes_on_at(result: str) -> int | None:
    """The line at which a file has to be read on."""
    found = _MORE.search(result)
    return int(found[1]) if found else None


def _listed(want: Want, results: Sequence[str]) -> str:
    lines = [line for line in results[0].splitlines() if line]
    if results[0].startswith("(empty directory)"):
        return f"The folder {code(want.subject)} is empty."
    folders = [line for line in lines if line.endswith("/") and "  " not in line]
    files = [line.rpartition("  ") for line in lines if re.search(r"\S  [\d,]+$", line)]
    others = [line for line in lines if " -> " in line]
    if not (folders or files or others):
        return _failed(f"listing {code(want.subject)}", results[0])
    count = len(folders) + len(files) + len(others)
    text = [f"The folder {code(want.subject)} holds {_number(count, 'entry', 'entries')}:"]
    if folders:
        text.append(f"- {_number(len(folders), 'folder')}: {_some(folders)}")
    if files:
        largest = max(files, key=lambda parts: int(parts[2].replace(",", "")))
        text.append(f"- {_number(len(files), 'file')}: {_some([name for name, _, _ in files])}")
        if len(files) > 1:
            text.append(f"- the largest file is {_safe(largest[0])} with {largest[2]} bytes")
    if others:
        text.append(f"- {_number(len(others), 'link')}: {_some(others)}")
    return "\n".join(text)


def _read(want: Want, results: Sequence[str]) -> str:
    name, markdown = code(want.subject), want.subject.endswith((".md", ".markdown"))
    lines = _lines(results)
    if lines is None:
        return _failed(f"reading {name}", results[0])
    if not lines:
        return f"{name} is empty."
    more = " at least" if goes_on_at(results[-1]) else ""
    text = [f"{name} has{more} {_number(len(lines), 'line')}."]
    headings = [line.lstrip("# ").strip() for line in lines if re.match(r"#{1,6} \S", line)]
    if headings and markdown:
        text[0] += f" Its first heading is {named(headings[0])}."
        if len(headings) > 1:
            text[0] += f" Further headings: {_some(headings[1:], 6)}."
    if len(lines) <= SHOWN:
        return "\n".join([*text, "It says:", "", *_block(lines)])
    beginning = _first_paragraph(lines) if markdown else [line for line in lines if line.strip()]
    return "\n".join([*text, "It begins:", "", *_block(beginning[:3])]) if beginning else text[0]


def _first_paragraph(lines: Sequence[str]) -> list[str]:
    """The first lines of a Markdown file that are sentences, up to an empty one."""
    sentences = dropwhile(lambda line: not line.strip() or _ADORNS.match(line), lines)
    return list(takewhile(str.strip, sentences))


def _counted(want: Want, results: Sequence[str]) -> str:
    lines = _lines(results)
    if lines is None:
        return _failed(f"counting in {code(want.subject)}", results[0])
    words, blank = sum(len(line.split()) for line in lines), sum(not line.strip() for line in lines)
    more = "at least " if goes_on_at(results[-1]) else ""
    count = f"{more}{_number(len(lines), 'line')} ({blank:,} of them blank)"
    return f"{code(want.subject)} has {count} and {_number(words, 'word')}."


def _found(want: Want, results: Sequence[str]) -> str:
    head, *lines = results[0].splitlines() or [""]
    path = want.arguments.get("path", "")
    where, subject = f" in {code(path)}" if path else "", named(want.subject)
    if head.startswith("No matches"):
        return f"{subject} was not found{where}."
    count = re.match(r"([\d,]+) (?:match(?:es)?|files?)\b", head)
    if count is None:
        return _failed(f"searching for {subject}", results[0])
    matches = [line.removeprefix(f"{path}:") for line in lines if line][:SHOWN]
    rest = int(count[1].replace(",", "")) - len(matches)
    what = head.rstrip(":").partition(";")[0]
    more = [f"… and {rest:,} more"] if rest > 0 else []
    return "\n".join([f"{subject} was found{where}: {what}.", "", *_block([*matches, *more])])


def _timed(want: Want, results: Sequence[str]) -> str:
    found = re.match(r"(\w+) (\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(\S*) \((.+)\)", results[0])
    if found is None:
        return _failed("asking for the time", results[0])
    day, date, clock, offset, name = found.groups()
    place = name if name == "UTC" else f"{name}, UTC{offset}"
    return f"It is {clock} on {day}, {date} ({place})."


def _summed(want: Want, results: Sequence[str]) -> str:
    value = results[0].partition("\n")[0]
    if not re.match(r"-?(?:\d|inf|nan)", value):
        return _failed(f"working out {_safe(want.subject)}", results[0])
    return f"{_safe(want.subject)} = {value}"


def _ran(want: Want, results: Sequence[str]) -> str:
    head, *lines = results[0].splitlines() or [""]
    if not head.startswith("exit code"):
        return _failed(f"running {code(want.subject)}", results[0])
    rest = [f"… and {_number(len(lines) - SHOWN, 'more line')}"] if len(lines) > SHOWN else []
    shown = [*lines[:SHOWN], *rest]
    return "\n".join(
        [f"{code(want.subject)} ended with {head}{':' if shown else '.'}", "", *_block(shown)]
    ).strip()


def _own(want: Want, results: Sequence[str]) -> str:
    said = _short(results[0], 600)
    if "\n" in said:
        return "\n".join([f"The tool {_safe(want.tool)} says:", "", *_block(said.split("\n"))])
    return f"The tool {_safe(want.tool)} says: {_safe(said)}"


_FACTS: Mapping[Kind, Callable[[Want, Sequence[str]], str]] = {
    "list": _listed, "read": _read, "count": _counted, "search": _found, "named": _found, "time": _timed,
    "sum": _summed, "run": _ran, "own": _own,
}  # fmt: skip


def _lines(results: Sequence[str]) -> list[str] | None:
    """The lines of a file from its pages; ``None`` when the tool could not read it."""
    if results[0].startswith("(empty file)"):
        return []
    found = [
        match[2] or "" for page in results for line in page.split("\n") if (match := _NUMBERED.match(line))
    ]
    return found or None


def _failed(what: str, result: str) -> str:
    line = _short(" ".join(result.split()), 300) or "the result is empty"
    if line.startswith("denied: "):
        line = line.partition(". ")[0] + "."
    return f"I got no further with {what}: {_safe(line)}"


def code(text: str) -> str:
    """A text as it is, within a line of Markdown."""
    sign = _longer_than_in(text, "`")
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{sign}{blank}{text}{blank}{sign}"


def named(text: str) -> str:
    """What was asked for, in quotes, or as code where Markdown would change it."""
    return code(text) if _MARKUP.search(text) else f"“{text}”"


def _safe(text: str) -> str:
    return code(text) if _MARKUP.search(text) else text


def _block(lines: Sequence[str]) -> list[str]:
    """Lines as they are, but for very long ones."""
    sign = _longer_than_in("\n".join(lines), "```")
    return [sign, *map(_short, lines), sign] if lines else []


def _longer_than_in(text: str, sign: str) -> str:
    """Backticks that end nowhere in the text."""
    return "`" * max(len(sign), 1 + max(map(len, re.findall("`+", text)), default=0))


def _some(names: Sequence[str], most: int = SHOWN) -> str:
    shown = ", ".join(map(_safe, names[:most]))
    return f"{shown} … and {len(names) - most:,} more" if len(names) > most else shown


def _number(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _short(line: str, most: int = 160) -> str:
    line = line.rstrip()
    return line if len(line) <= most else line[: most - 1] + "…"


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
