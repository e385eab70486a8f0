"""From the text of a tool's result to a sentence with facts in it, in Markdown. The forms read here are the
core toolset's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile, takewhile

from fsm_agent.providers.offline.plan import Kind, Want

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
