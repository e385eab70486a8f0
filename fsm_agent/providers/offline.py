"""``offline:demo``: a rule-based substitute for a model, without a key and without a network.

A request is split into clauses; the first rule that matches a clause decides which tool it calls. Clauses
joined by "and" may run together, "then" begins the next stage. The answer is written from the real results of
those calls. The demo is deterministic and stateless: all it knows is in the request. It reports no usage,
because it reads no tokens."""

from __future__ import annotations

import ast
import asyncio
import functools
import itertools
import json
import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall
from fsm_agent.runtime.ports import StreamSink

NO_MODEL = "(offline demo: no language model was used)"
MAX_ROUNDS = 12
"""Maximum rounds of tools for one request; a file whose lines are counted is read page by page."""
MAX_REQUEST = 2_000
"""Maximum characters of a request that are parsed."""
MAX_CALLS = 12
SHOWN = 12
"""Maximum lines or names that an answer quotes."""
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

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing that the user wants. ``subject`` is its name in the answer; ``stage`` orders calls that must
    wait."""

    tool: str
    subject: str
    arguments: Mapping[str, Any]
    counts: bool = False
    stage: int = 0


class OfflineDemo:
    """A ``ModelPort`` without a model. ``pace``: seconds between two pieces of streamed text, 0 for none."""

    def __init__(self, pace: float = 0.0) -> None:
        self.pace = pace

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        """Decide by rule. Returns a ``shape`` failure for a body that is not a chat-completions request."""
        try:
            body = json.loads(request.body)
            text, calls = _decide(body, request.purpose == "summary")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            line = f"the offline demo cannot read this request: {type(error).__name__}"
            return Failure("shape", line, exception=type(error).__name__, detail=line.lower())
        sink.alive()
        for delta in re.findall(r"\s*\S{1,24}|\s+\Z", text):
            sink.text(delta)
            await asyncio.sleep(self.pace)
        for call in calls:
            sink.tool(call.name)
            sink.arguments(call.name, call.arguments)
        return ModelReply(text, tool_calls=calls, finish="tool_calls" if calls else "stop", model="demo")

    def use_key(self, key: str) -> None:
        """Do nothing: there is no key."""

    async def rebuild(self) -> None:
        """Do nothing: there is no connection."""

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def _decide(body: Row, summary: bool) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of the reply, or its calls."""
    rows: Sequence[Row] = body["messages"]
    tools = {
        tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in body.get("tools") or ()
    }
    if summary:
        asked = re.findall(r"<user>\n(.*?)\n</user>", _text(rows[-1]), re.DOTALL)
        lines = [f"- the user asked: {' '.join(text.split())[:200]}" for text in asked[-20:]]
        return "\n".join(["Summary by rule of the conversation so far:", *lines, "", NO_MODEL]), ()
    start = _newest_request(rows, bool(tools))
    intents, turn = plan(_text(rows[start]), tools), rows[start + 1 :]
    calls = list(_calls_made(turn))
    if tools and sum(bool(row.get("tool_calls")) for row in turn) < MAX_ROUNDS:
        for stage in sorted({one.stage for one in intents}):
            missing = [next_ for one in intents if one.stage == stage and (next_ := _next_call(one, calls))]
            if usable := [one for one in missing if one.tool in tools]:
                return "", tuple(
                    ToolCall(
                        f"offline_{len(rows)}_{number}",
                        one.tool,
                        json.dumps(dict(one.arguments), ensure_ascii=False),
                    )
                    for number, one in enumerate(usable)
                )
    return f"{_answer(intents, calls, tools) if intents else HELP}\n\n{NO_MODEL}", ()


def _newest_request(rows: Sequence[Row], tools: bool) -> int:
    """Return the index of the user's newest request. Without tools the last row may be the agent's own, which
    asks for a final answer: then the user's request is the one before it, whose tools were called."""
    users = [index for index, row in enumerate(rows) if row["role"] == "user"]
    if not users:
        return len(rows) - 1
    if not tools and len(users) > 1 and any(row.get("tool_calls") for row in rows[users[-2] : users[-1]]):
        return users[-2]
    return users[-1]


def _text(row: Row) -> str:
    content = row.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


# Previous calls, and the next one


@dataclass(frozen=True, slots=True)
class CallMade:
    """A finished tool call and its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str


def _calls_made(rows: Sequence[Row]) -> Iterator[CallMade]:
    results = {row.get("tool_call_id"): _text(row) for row in rows if row["role"] == "tool"}
    for row in rows:
        for call in row.get("tool_calls") or ():
            if call["id"] in results:
                arguments = json.loads(call["function"]["arguments"] or "{}")
                yield CallMade(call["function"]["name"], arguments, results[call["id"]])


def _next_call(intent: Intent, calls: Sequence[CallMade]) -> Intent | None:
    """Return the first call of an intent, or the next page of a file whose lines are counted; ``None`` if all
    results are there."""
    intent, results = _follow(intent, calls)
    if not results:
        return intent
    line = _next_line(results[-1]) if intent.counts else None
    return replace(intent, arguments={**intent.arguments, "start_line": line}) if line else None


def _follow(intent: Intent, calls: Sequence[CallMade]) -> tuple[Intent, list[str]]:
    """Return an intent and its results so far, page by page. A file that turns out to be a folder is listed,
    and vice versa."""
    page = {"start_line"} if intent.counts else set()
    results = [
        call.result
        for call in calls
        if call.name == intent.tool
        and {key: value for key, value in call.arguments.items() if key not in page} == intent.arguments
    ]
    if results and intent.tool == "read_file" and not intent.counts and "is a directory" in results[0]:
        return _follow(replace(intent, tool="list_directory"), calls)
    if results and intent.tool == "list_directory" and "is a file; use read_file" in results[0]:
        return _follow(replace(intent, tool="read_file"), calls)
    return intent, results


def _next_line(result: str) -> int | None:
    found = re.search(r"^\[more lines follow; continue with start_line=(\d+)\]$", result, re.MULTILINE)
    return int(found[1]) if found else None


# From a request to tool calls

_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”|(?<!\w)'([^'\n]+)'(?!\w)")
_INSIDE = re.compile(rf"{_QUOTED.pattern}|\([^()\n]*\)")
_THEN = re.compile(r"(?:,?\s*(?:and\s+)?\b(?:then|after that|afterwards|finally)\b,?)", re.IGNORECASE)
_BOUNDARY = re.compile(
    rf"\s*(?:{_THEN.pattern}|[;\n]|[.?!](?=\s|$)|,?\s+(?:and|also)(?=\s|$)|,(?=\s))\s*", re.IGNORECASE
)
_PATH = re.compile(
    r"(?<![\w/.:-])(?:~|\.{1,2})?/?[\w-][\w.-]*(?:/[\w.-]+)*/?(?![\w:])|(?<!\S)\.{1,2}/?(?=\s|$)|(?<!\S)\.[\w.-]+"
)
_KNOWN_FILES = {
    "readme": "README.md",
    "changelog": "CHANGELOG.md",
    "license": "LICENSE",
    "makefile": "Makefile",
}
_PLACE = re.compile(r"\b(?:in|for|at)\s+([A-Za-z][\w/-]*(?:\s+[A-Z]\w*){0,2})|\b(utc)\b", re.IGNORECASE)
_MATHS = "sqrt|exp|log10|log2|log|sin|cos|tan|factorial|gcd|abs|min|max|round|floor|ceil"
_SUM = re.compile(rf"(?:\d[\d_]*(?:\.\d+)?|\.\d+|\*\*|//|[-+*/%(),]|\b(?:{_MATHS}|pi)\b|\s)+")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}")
_RUN = re.compile(
    r"^\W*(?:please\s+)?(?:run|execute)\b(?P<named>(?:\s+the)?\s+command:?)?\s*(?P<what>.*)$", re.IGNORECASE
)
_SEARCH = re.compile(
    r"\b(?:search(?:\s+(?P<there>.+?))?\s+for|look\s+for|grep|find|where\s+(?:is|are))\s+(?P<what>.+)",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"^(?:(?:all|every|any|the|files?|lines?|words?|text|of|with|that|contain(?:s|ing)?)\s+)+(?=\S)",
    re.IGNORECASE,
)
_IN = re.compile(r"\s+(?:in|inside|under|within)\s+(?:the\s+)?(?P<place>.+)$", re.IGNORECASE)
_GLOB = re.compile(r"(?<!\S)([\w./-]*\*[\w.*/-]*)")
_COUNT = re.compile(r"\b(?:count|how many|number of|how long)\b.*\b(?:lines?|words?|long)\b", re.IGNORECASE)
_READ = re.compile(r"\b(?:read|open|cat|print|summari[sz]e)\b", re.IGNORECASE)
_READ_WORD = re.compile(
    r"^(?:please\s+)?(?:read|open|cat)\s+(?:the\s+)?(?:file\s+)?([\w-]+)\W*$", re.IGNORECASE
)
_LIST_WORD = re.compile(r"^(?:please\s+)?(?:list|ls)\s+(?:the\s+)?([\w-]+)\W*$", re.IGNORECASE)
_LIST = re.compile(r"\b(?:list|ls|show|what|what's|which|see|how many|contents?)\b", re.IGNORECASE)
_FOLDER = re.compile(r"\b(?:files?|folders?|director(?:y|ies)|entries|contents?|here|ls)\b", re.IGNORECASE)
_NAMED_FOLDER = re.compile(
    r"\b(?:in|of|under|inside|ls)\s+(?:the\s+)?(?P<a>[\w-]+)|\b(?P<b>[\w-]+)\s+(?:folder|directory)\b",
    re.IGNORECASE,
)
_NO_FOLDER = re.compile(
    r"a|all|any|every|here|in|is|it|list|me|my|of|our|show|that|the|there|this|what|which|contents|current"
    r"|directory|directories|entries|files?|folders?|project|repo|repository|root|whole|working",
    re.IGNORECASE,
)
_TIME = re.compile(r"\b(?:time|date|clock|what day|today)\b", re.IGNORECASE)


def plan(request: str, tools: Mapping[str, Row]) -> list[Intent]:
    """Return the intents of a request, in order. ``tools``: the parameter schemas of the offered tools, by
    name. An intent whose tool is missing is kept, so that the answer can say so."""
    found: dict[tuple[str, str, bool], Intent] = {}
    for stage, words in _clauses(request[:MAX_REQUEST]):
        intents = list(_calls_in_text(words, tools))
        for rule in () if intents else _RULES:
            if intents := rule(words):
                break
        for one in intents:
            found.setdefault((one.tool, repr(one.arguments), one.counts), replace(one, stage=stage))
    return list(found.values())[:MAX_CALLS]


def _clauses(text: str) -> Iterator[tuple[int, str]]:
    """Yield (stage, words). Quotes and parentheses are kept whole; "then" begins a new stage."""
    # long runs of blanks would make the patterns slow
    text = re.sub(r" ?\n[ \n]*", "\n", re.sub(r"[^\S\n]+", " ", text))
    masked = _INSIDE.sub(lambda found: "_" * len(found[0]), text)
    stage = start = 0
    for boundary in _BOUNDARY.finditer(f"{masked}\n"):
        if part := text[start : boundary.start()].strip():
            yield stage, part
        start = boundary.end()
        stage += bool(_THEN.search(boundary[0])) and bool(text[: boundary.start()].strip())


def _calls_in_text(words: str, tools: Mapping[str, Row]) -> Iterator[Intent]:
    """Find tool calls written as text: ``lookup(city="Bern", days=2)`` or ``lookup("Bern")``."""
    for name, schema in tools.items():
        at = re.search(rf"(?<![\w.]){re.escape(name)}\s*\(", words)
        if at is None:
            continue
        try:
            call = ast.parse(words[at.start() : words.rindex(")") + 1], mode="eval").body
            if isinstance(call, ast.Call):
                values = map(ast.literal_eval, call.args)
                arguments = dict(zip(schema.get("properties", {}), values, strict=False))
                arguments |= {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
                yield Intent(name, name, arguments)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue


def _run(words: str) -> list[Intent]:
    if (found := _RUN.match(words)) is None:
        return []
    command = _first_quoted(found["what"]) or (found["what"].strip() if found["named"] else "")
    return [Intent("terminal", command, {"command": command})] if command else []


def _search(words: str) -> list[Intent]:
    if (found := _SEARCH.search(words)) is None:
        return []
    pattern, there = found["what"].strip(), found["there"] or ""
    if place := _IN.search(pattern):
        pattern, there = pattern[: place.start()], place["place"]
    where = next(iter(_paths(there)), "") or _folder(f"in {there}" if there else "")
    extra = {"path": where} if where not in ("", ".") else {}
    pattern = _first_quoted(pattern) or re.sub(
        r"\s+(?:defined|used|here)$", "", _FILLER.sub("", pattern.strip(" .?!:,"))
    )
    if glob := _GLOB.search(pattern):
        return [Intent("search_files", glob[1], {"name": glob[1], **extra})]
    if not pattern or _NO_FOLDER.fullmatch(pattern) or _TIME.fullmatch(pattern):
        return []
    return [Intent("search_files", pattern, {"content": re.escape(pattern).replace("\\ ", " "), **extra})]


def _count(words: str) -> list[Intent]:
    paths = _paths(words) if _COUNT.search(words) else []
    return [Intent("read_file", path, {"path": path}, counts=True) for path in paths]


def _read(words: str) -> list[Intent]:
    found, read = _paths(words), _READ.search(words)
    if not found and (word := _READ_WORD.match(words)):
        found = [word[1]]
    folders = (
        ()
        if read
        else [one for one in found if one.endswith(("/", ".")) or "." not in one.rpartition("/")[2]]
    )
    return [Intent("list_directory" if one in folders else "read_file", one, {"path": one}) for one in found]


def _list(words: str) -> list[Intent]:
    if plain := _LIST_WORD.match(words):
        place = "." if _NO_FOLDER.fullmatch(plain[1]) else plain[1]
    elif _LIST.search(words) and _FOLDER.search(words):
        place = _folder(words)
    else:
        return []
    return [Intent("list_directory", place, {"path": place})]


def _time(words: str) -> list[Intent]:
    if not _TIME.search(words):
        return []
    place = next((match[1] or match[2] for match in _PLACE.finditer(words)), "")
    zone = _zones().get(place.lower().replace("_", " "), place)
    return [Intent("get_time", zone or "here", {"zone": zone} if zone else {})]


def _calculate(words: str) -> list[Intent]:
    found = (
        re.sub(r"^[-+*/%,)\s]+\s", "", match[0].strip()).strip(" ,*/%+-=")
        for match in _SUM.finditer(_DATE.sub(" ", words.replace("^", "**")))
    )
    return [Intent("calculate", one, {"expression": one}) for one in found if _is_expression(one)]


_RULES: tuple[Callable[[str], list[Intent]], ...] = (_run, _search, _count, _read, _list, _time, _calculate)


def _first_quoted(words: str) -> str | None:
    """Return the text in the first pair of quotes."""
    found = _QUOTED.search(words)
    return next(part for part in found.groups() if part) if found else None


def _paths(words: str) -> list[str]:
    """Return everything that looks like a path: with a slash, with an extension, or a well-known name."""
    name = _first_quoted(words)
    found = [name] if name and _is_path(name) else []
    rest = words.replace(name, " ") if name and found else words
    for match in _PATH.finditer(rest):
        name = match[0].rstrip(".") or "."
        if (known := _KNOWN_FILES.get(name.lower())) or _is_path(name):
            found.append(known or name)
    return list(dict.fromkeys(found))


def _is_path(name: str) -> bool:
    looks = "/" in name or name.startswith(".") or re.search(r"\.[A-Za-z]\w{0,9}$", name)
    known = name.lower() in ("and/or", "e.g") or name.lower().replace("_", " ") in _zones()
    return bool(looks and re.search(r"[A-Za-z.]", name)) and not known


def _folder(words: str) -> str:
    names = (found["a"] or found["b"] for found in _NAMED_FOLDER.finditer(words))
    return _first_quoted(words) or next((name for name in names if not _NO_FOLDER.fullmatch(name)), ".")


@functools.cache
def _zones() -> dict[str, str]:
    """Return time zones by their own names and by their cities, in lower case."""
    known = sorted(zone for zone in zoneinfo.available_timezones() if zone.count("/") == 1)
    cities = {name.rpartition("/")[2].lower().replace("_", " "): name for name in known}
    return cities | {name.lower().replace("_", " "): name for name in known} | {"utc": "UTC"}


def _is_expression(text: str) -> bool:
    if len(text) > 200 or not any(character.isdigit() for character in text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return False
    return isinstance(tree.body, ast.BinOp | ast.Call)


# From results to an answer in Markdown

_MARKUP = re.compile(r"`|\*.*\*|(?<!\w)_|_(?!\w)|~~|\]\(|<[a-zA-Z/!]|&#?\w+;|\\[!-/:-@\[-`{-~]", re.DOTALL)
"""Text that Markdown would not display verbatim."""


def _answer(intents: Sequence[Intent], calls: Sequence[CallMade], tools: Mapping[str, Any]) -> str:
    parts = []
    for one in intents:
        followed, results = _follow(one, calls)
        if results:
            describe = _DESCRIPTIONS.get(followed.tool, _describe_own)
            problem = f"{followed.tool} failed for {_name(followed.subject)}: {_safe(_problem(results[0]))}"
            parts.append(describe(followed, results) or problem)
        elif one.tool not in tools and tools:
            parts.append(f"For {_name(one.subject)} I would need the tool {one.tool}, which is not on offer.")
        else:
            why = "no rounds are left" if tools else "no tool is on offer"
            parts.append(f"I did not get to {_name(one.subject)}: {why}.")
    return "\n\n".join(parts)


def _problem(result: str) -> str:
    line = _shorten(" ".join(result.split()), 300) or "the result is empty"
    return line.partition(". ")[0] + "." if line.startswith("denied: ") else line


def _describe_folder(intent: Intent, results: Sequence[str]) -> str:
    if results[0].startswith("(empty directory)"):
        return f"The folder {_code(intent.subject)} is empty."
    lines = results[0].splitlines()
    kinds = {
        "folder": [line for line in lines if line.endswith("/") and "  " not in line],
        "file": [line.rpartition("  ")[0] for line in lines if re.search(r"\S  [\d,]+$", line)],
        "link": [line for line in lines if " -> " in line],
    }
    count = sum(map(len, kinds.values()))
    text = [f"The folder {_code(intent.subject)} holds {count:,} {'entry' if count == 1 else 'entries'}:"]
    text += [f"- {_number(len(some), kind)}: {_some(some)}" for kind, some in kinds.items() if some]
    return "\n".join(text) if count else ""


def _describe_file(intent: Intent, results: Sequence[str]) -> str:
    name, empty = _code(intent.subject), results[0].startswith("(empty file)")
    found = [re.match(r"\d+(?:\t(.*))?$", line) for page in results for line in page.split("\n")]
    lines = [match[1] or "" for match in found if match]
    if empty or not lines:
        return f"{name} is empty." if empty else ""
    more = " at least" if _next_line(results[-1]) else ""
    text = f"{name} has{more} {_number(len(lines), 'line')}"
    if intent.counts:
        words, blank = sum(len(line.split()) for line in lines), sum(not line.strip() for line in lines)
        return f"{text} ({blank:,} of them blank) and {_number(words, 'word')}."
    headings = [line.lstrip("# ").strip() for line in lines if re.match(r"#{1,6} \S", line)]
    if headings and intent.subject.endswith(".md"):
        text += f". Its first heading is {_name(headings[0])}"
    short = len(lines) <= SHOWN
    sentences = itertools.dropwhile(lambda line: not line.strip() or line.lstrip()[0] in "#<[!", lines)
    shown = lines if short else list(itertools.takewhile(str.strip, sentences))[:3]
    return "\n".join([f"{text}. It {'says' if short else 'begins'}:", "", *_block(shown)])


def _describe_matches(intent: Intent, results: Sequence[str]) -> str:
    head, *lines = results[0].splitlines() or [""]
    path = intent.arguments.get("path", "")
    subject, where = _name(intent.subject), f" in {_code(path)}" if path else ""
    if head.startswith("No matches"):
        return f"{subject} was not found{where}."
    count = re.match(r"([\d,]+) (?:match(?:es)?|files?)\b", head)
    if count is None:
        return ""
    matches = [line.removeprefix(f"{path}:") for line in lines if line][:SHOWN]
    rest = int(count[1].replace(",", "")) - len(matches)
    more = [f"… and {rest:,} more"] if rest > 0 else []
    what = head.rstrip(":").partition(";")[0]
    return "\n".join([f"{subject} was found{where}: {what}.", "", *_block([*matches, *more])])


def _describe_time(intent: Intent, results: Sequence[str]) -> str:
    found = re.match(r"(\w+) (\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(\S*) \((.+)\)", results[0])
    if found is None:
        return ""
    day, date, clock, offset, name = found.groups()
    return f"It is {clock} on {day}, {date} ({name if name == 'UTC' else f'{name}, UTC{offset}'})."


def _describe_sum(intent: Intent, results: Sequence[str]) -> str:
    value = results[0].partition("\n")[0]
    return f"{_safe(intent.subject)} = {value}" if re.match(r"-?(?:\d|inf|nan)", value) else ""


def _describe_command(intent: Intent, results: Sequence[str]) -> str:
    head, *lines = results[0].splitlines() or [""]
    if not head.startswith("exit code"):
        return ""
    rest = [f"… and {_number(len(lines) - SHOWN, 'more line')}"] if len(lines) > SHOWN else []
    shown = _block([*lines[:SHOWN], *rest])
    return "\n".join(
        [f"{_code(intent.subject)} ended with {head}{':' if shown else '.'}", "", *shown]
    ).strip()


def _describe_own(intent: Intent, results: Sequence[str]) -> str:
    text, head = _shorten(results[0], 600), f"The tool {_safe(intent.tool)} says:"
    return "\n".join([head, "", *_block(text.split("\n"))]) if "\n" in text else f"{head} {_safe(text)}"


_DESCRIPTIONS: Mapping[str, Callable[[Intent, Sequence[str]], str]] = {
    "list_directory": _describe_folder,
    "read_file": _describe_file,
    "search_files": _describe_matches,
    "get_time": _describe_time,
    "calculate": _describe_sum,
    "terminal": _describe_command,
}


def _code(text: str) -> str:
    """Return a text as Markdown inline code, which displays it verbatim."""
    sign, blank = _fence(text, "`"), " " if text.startswith("`") or text.endswith("`") else ""
    return f"{sign}{blank}{text}{blank}{sign}"


def _name(text: str) -> str:
    return _code(text) if _MARKUP.search(text) else f"“{text}”"


def _safe(text: str) -> str:
    return _code(text) if _MARKUP.search(text) else text


def _block(lines: Sequence[str]) -> list[str]:
    sign = _fence("\n".join(lines), "```")
    return [sign, *map(_shorten, lines), sign] if lines else []


def _fence(text: str, sign: str) -> str:
    """Return a longer run of backticks than any in the text."""
    return "`" * max(len(sign), 1 + max(map(len, re.findall("`+", text)), default=0))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(_safe, names[:SHOWN]))
    return f"{shown} … and {len(names) - SHOWN:,} more" if len(names) > SHOWN else shown


def _number(count: int, one: str) -> str:
    return f"{count:,} {one if count == 1 else one + 's'}"


def _shorten(line: str, most: int = 160) -> str:
    line = line.rstrip()
    return line if len(line) <= most else line[: most - 1] + "…"
