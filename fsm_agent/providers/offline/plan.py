"""From the words of a request to tool calls, by rule.

The first rule that fits a clause decides; a clause without a verb ("and LICENSE") continues the one before
it. Clauses joined by "and" belong to one stage and may run together, "then" begins the next stage.
"""

from __future__ import annotations

import ast
import functools
import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

# ----------------------------------------------------------------------------------------------------
# Finding clauses, paths, places and sums in a sentence. Plain patterns: nothing here understands anything.


_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”|(?<!\w)'([^'\n]+)'(?!\w)")
_INSIDE = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|“[^”\n]*”|(?<!\w)'[^'\n]*'(?!\w)|\([^()\n]*\)")
_NEXT = r"(?:,?\s*(?:and\s+)?\b(?:then|after that|afterwards|finally)\b,?)"
_BOUNDARY = re.compile(
    rf"\s*(?:{_NEXT}|[;\n]|[.?!](?=\s|$)|,?\s+(?:and|also)(?=\s|$)|,(?=\s))\s*", re.IGNORECASE
)
_IS_NEXT = re.compile(_NEXT, re.IGNORECASE)

_PATH = re.compile(
    r"(?<![\w/.:-])(?:~|\.{1,2})?/?[\w-][\w.-]*(?:/[\w.-]+)*/?(?![\w:])|(?<!\S)\.{1,2}/?(?=\s|$)|(?<!\S)\.[\w.-]+"
)
_ENDING = re.compile(r"\.[A-Za-z]\w{0,9}$")
_KNOWN = {
    "readme": "README.md", "changelog": "CHANGELOG.md", "license": "LICENSE", "makefile": "Makefile",
    "dockerfile": "Dockerfile", "pyproject": "pyproject.toml",
}  # fmt: skip

_CITIES = {
    "san francisco": "America/Los_Angeles", "seattle": "America/Los_Angeles", "boston": "America/New_York",
    "washington": "America/New_York", "geneva": "Europe/Zurich", "bern": "Europe/Zurich",
    "munich": "Europe/Berlin", "barcelona": "Europe/Madrid", "milan": "Europe/Rome",
    "beijing": "Asia/Shanghai", "delhi": "Asia/Kolkata", "mumbai": "Asia/Kolkata",
    "bangalore": "Asia/Kolkata", "osaka": "Asia/Tokyo", "japan": "Asia/Tokyo", "germany": "Europe/Berlin",
    "france": "Europe/Paris", "switzerland": "Europe/Zurich", "utc": "UTC", "gmt": "UTC",
}  # fmt: skip
_PLACE = re.compile(
    r"\b(?:in|for|at)\s+(?:the\s+)?([A-Za-z][\w.'/-]*(?:\s+[A-Za-z][\w.'-]*){0,2})|\b(utc|gmt)\b",
    re.IGNORECASE,
)

_MATHS = "sqrt|exp|log10|log2|log|sin|cos|tan|factorial|gcd|abs|min|max|round|floor|ceil"
_SUM = re.compile(rf"(?:\d[\d_]*(?:\.\d+)?|\.\d+|\*\*|//|[-+*/%(),]|\b(?:{_MATHS}|pi)\b|\s)+")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}")
_IN_WORDS = (
    (r"(?<=\d),(?=\d{3}\b)", ""), ("[×⋅]", "*"), ("÷", "/"), ("−", "-"), (r"\^", "**"),
    (r"(?<=[\d)])\s*x\s*(?=[\d(])", "*"), (r"\b(?:times|multiplied by)\b", "*"), (r"\bplus\b", "+"),
    (r"\bminus\b", "-"), (r"\bdivided by\b", "/"), (r"\bto the power of\b", "**"),
    (r"\bsquared\b", "**2"), (r"\bcubed\b", "**3"),
    (r"(\d+(?:\.\d+)?)\s*(?:%|percent)\s+of\s+(\d+(?:\.\d+)?)", r"\1/100*\2"),
    (r"\b(?:the\s+)?square root of\s+(\d+(?:\.\d+)?)", r"sqrt(\1)"),
)  # fmt: skip


def clauses(text: str) -> Iterator[tuple[int, str]]:
    """The parts of a request as (stage, words). Quotes and parentheses are kept whole; "then" begins a new
    stage."""
    text = re.sub(
        r" ?\n[ \n]*", "\n", re.sub(r"[^\S\n]+", " ", text)
    )  # long blanks would make the patterns slow
    masked = _INSIDE.sub(lambda found: "_" * len(found[0]), text)
    stage = start = 0
    for boundary in _BOUNDARY.finditer(masked):
        if part := text[start : boundary.start()].strip():
            yield stage, part
        start = boundary.end()
        stage += bool(_IS_NEXT.search(boundary[0])) and bool(text[: boundary.start()].strip())
    if part := text[start:].strip():
        yield stage, part


def quoted(words: str) -> str | None:
    """What stands in the first pair of quotes."""
    found = _QUOTED.search(words)
    return next(part for part in found.groups() if part) if found else None


def paths(words: str) -> list[str]:
    """Everything that looks like a path: with a slash, with an ending, or a well-known name."""
    found: list[str] = []
    if (name := quoted(words)) and _is_path(name):
        found.append(name)
        words = words.replace(name, " ")
    for match in _PATH.finditer(words):
        name = match[0].rstrip(".") or "."
        known = _KNOWN.get(name.lower())
        if known or _is_path(name):
            found.append(known or name)
    return list(dict.fromkeys(found))


def _is_path(name: str) -> bool:
    looks = "/" in name or name.startswith(".") or _ENDING.search(name)
    return bool(
        looks
        and re.search(r"[A-Za-z.]", name)
        and not zone_of(name)
        and name.lower() not in ("and/or", "e.g")
    )


def zone(words: str) -> str | None:
    """The time zone of a place named in the words; the place itself when it is unknown but written like
    one."""
    for match in _PLACE.finditer(words):
        place = (match[1] or match[2]).split()
        for length in range(len(place), 0, -1):
            if known := zone_of(" ".join(place[:length])):
                return known
        if place[0][0].isupper():
            return place[0]
    return None


def zone_of(place: str) -> str | None:
    """The zone of a city or of a zone's own name."""
    return _zones().get(place.strip(" .'").lower().replace("_", " "))


@functools.cache
def _zones() -> dict[str, str]:
    known = zoneinfo.available_timezones()
    names = {
        name.rpartition("/")[2].lower().replace("_", " "): name
        for name in sorted(known)
        if name.count("/") == 1
    }
    return names | {name.lower().replace("_", " "): name for name in known if "/" in name} | _CITIES


def sums(words: str) -> list[str]:
    """Arithmetic in digits or words, as Python expressions."""
    text = _DATE.sub(" ", words)
    for pattern, operator in _IN_WORDS:
        text = re.sub(pattern, operator, text, flags=re.IGNORECASE)
    found = (
        re.sub(r"^[-+*/%,)\s]+\s", "", match[0].strip()).strip(" ,*/%+-=") for match in _SUM.finditer(text)
    )
    return list(dict.fromkeys(part for part in found if _is_sum(part)))


def _is_sum(text: str) -> bool:
    if len(text) > 200 or not any(character.isdigit() for character in text):
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return False
    return isinstance(tree.body, ast.BinOp | ast.Call)


Kind = Literal["list", "read", "count", "search", "named", "time", "sum", "run", "own"]
Schemas = Mapping[str, Mapping[str, Any]]
MAX_REQUEST = 2_000
"""Characters of a request that are looked at."""
MAX_WANTS = 12

TOOLS: Mapping[Kind, str] = {
    "list": "list_directory", "read": "read_file", "count": "read_file", "search": "search_files",
    "named": "search_files", "time": "get_time", "sum": "calculate", "run": "terminal",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Want:
    """One thing that the user wants. ``subject`` is how the answer names it; ``stage`` orders calls that must
    wait."""

    kind: Kind
    tool: str
    subject: str
    arguments: Mapping[str, Any]
    stage: int = 0


def plan(request: str, tools: Schemas) -> list[Want]:
    """What to do for a request, in order. ``tools`` are the parameter schemas of the tools on offer, by name;
    a want whose tool is not among them is kept, so that the answer can say so."""
    wants: list[Want] = []
    kind: Kind | None = None
    for stage, words in clauses(request[:MAX_REQUEST]):
        found = list(_own(words, tools)) or _by_rule(words) or _continued(words, kind)
        kind = found[-1].kind if found else kind
        wants += [replace(want, stage=stage) for want in found]
    unique = {(want.tool, repr(want.arguments), want.kind): want for want in reversed(wants)}
    return [want for want in wants if unique.pop((want.tool, repr(want.arguments), want.kind), None)][
        :MAX_WANTS
    ]


def _want(kind: Kind, subject: str, **arguments: Any) -> Want:
    return Want(kind, TOOLS[kind], subject, arguments)


def _by_rule(words: str) -> list[Want]:
    for rule in _RULES:
        if found := rule(words):
            return found
    return []


_RUN = re.compile(
    r"^\W*(?:please\s+)?(?:run|execute)\b(?:\s+the\s+command|\s+command)?:?\s*(.*)$", re.IGNORECASE
)
_SEARCH = re.compile(
    r"\b(?:search(?:\s+(?P<there>.+?))?\s+for|look\s+for|grep(?:\s+for)?|find|search|"
    r"occurrences?\s+of|mentions?\s+of|where\s+(?:is|are)|files?\s+(?:contain|mention|use|include)(?:s|ing)?)\s+(?P<what>.+)",
    re.IGNORECASE,
)
_FILLER = re.compile(
    r"^(?:(?:all|every|any|each|the|files?|lines?|places?|occurrences?|mentions?|uses?|words?|text|strings?|of|with|that|which|"
    r"where|containing|contains?|mentions?|for|out|me)\s+)+(?=\S)",
    re.IGNORECASE,
)
_IN = re.compile(r"\s+(?:in|inside|under|within)\s+(?:the\s+)?(?P<place>.+)$", re.IGNORECASE)
_TAIL = re.compile(
    r"\s+(?:(?:is|are)\s+)?(?:defined|used|mentioned|here|please|appears?|occurs?)$", re.IGNORECASE
)
_GLOB = re.compile(r"(?<!\S)([\w./-]*\*[\w.*/-]*)")
_COUNT = re.compile(r"\b(?:count|how many|number of|how long)\b", re.IGNORECASE)
_PARTS = re.compile(r"\b(?:lines?|words?|characters?|long)\b", re.IGNORECASE)
_READ = re.compile(r"\b(?:read|open|cat|print|summari[sz]e)\b", re.IGNORECASE)
_READ_WORD = re.compile(
    r"^(?:please\s+)?(?:read|open|cat)\s+(?:the\s+)?(?:file\s+)?([\w-]+)\W*$", re.IGNORECASE
)
_LIST_WORD = re.compile(r"^(?:please\s+)?(?:list|ls)\s+(?:the\s+)?([\w-]+)\W*$", re.IGNORECASE)
_LIST = re.compile(
    r"\b(?:list|ls|find|show|display|what|what's|which|see|how many|look|content|contents|count)\b",
    re.IGNORECASE,
)
_FOLDER = re.compile(
    r"\b(?:files?|folders?|director(?:y|ies)|entries|contents?|here|ls|repository|repo|project)\b",
    re.IGNORECASE,
)
_NAMED_FOLDER = re.compile(
    r"\b(?:in|of|under|inside|ls|(?:directory|folder)(?:\s+called|\s+named)?)\s+(?:the\s+)?(?P<a>[\w-]+)|"
    r"\b(?P<b>[\w-]+)\s+(?:folder|directory)\b",
    re.IGNORECASE,
)
_NO_FOLDER = frozenset(
    (
        *(
            "a",
            "all",
            "any",
            "at",
            "every",
            "here",
            "in",
            "is",
            "it",
            "list",
            "me",
            "my",
            "of",
            "our",
            "show",
            "that",
        ),
        *(
            "the",
            "there",
            "this",
            "what",
            "which",
            "contents",
            "current",
            "directory",
            "directories",
            "entries",
            "file",
        ),
        *("files", "folder", "folders", "project", "repo", "repository", "root", "whole", "working"),
    )
)
_TIME = re.compile(r"\b(?:time|date|clock|what day|today)\b", re.IGNORECASE)


def _running(words: str) -> list[Want]:
    if (found := _RUN.match(words)) is None:
        return []
    explicit = "command" in words.lower() or ":" in words[: found.start(1)]
    command = quoted(found[1]) or (found[1].strip() if explicit else "")
    return [_want("run", command, command=command)] if command else []


def _searching(words: str) -> list[Want]:
    if (found := _SEARCH.search(words)) is None:
        return []
    what, there = found["what"].strip(), found["there"] or ""
    if place := _IN.search(what):
        what, there = what[: place.start()], place["place"]
    where = next(iter(paths(there)), "") or _folder(f"in {there}" if there else "")
    what = quoted(what) or _TAIL.sub("", _FILLER.sub("", _TAIL.sub("", what))).strip(" .?!:,")
    extra = {"path": where} if where not in ("", ".") else {}
    if glob := _GLOB.search(what):
        return [_want("named", glob[1], name=glob[1], **extra)]
    if not what or what.lower() in _NO_FOLDER or _TIME.fullmatch(what):
        return []
    return [_want("search", what, content=re.escape(what).replace("\\ ", " "), **extra)]


def _counting(words: str) -> list[Want]:
    if not (_COUNT.search(words) and _PARTS.search(words)):
        return []
    return [_want("count", path, path=path) for path in paths(words)]


def _reading(words: str) -> list[Want]:
    found, read = paths(words), _READ.search(words)
    if not found and (word := _READ_WORD.match(words)):
        found = [word[1]]
    return [
        _want("list", p, path=p) if _is_folder(p) and not read else _want("read", p, path=p) for p in found
    ]


def _listing(words: str) -> list[Want]:
    if plain := _LIST_WORD.match(words):
        place = "." if plain[1].lower() in _NO_FOLDER else plain[1]
        return [_want("list", place, path=place)]
    if not (_LIST.search(words) and _FOLDER.search(words)):
        return []
    place = _folder(words)
    return [_want("list", place, path=place)]


def _timing(words: str) -> list[Want]:
    if not _TIME.search(words):
        return []
    place = zone(words)
    return [_want("time", place, zone=place) if place else _want("time", "here")]


def _summing(words: str) -> list[Want]:
    return [_want("sum", expression, expression=expression) for expression in sums(words)]


_RULES: tuple[Callable[[str], list[Want]], ...] = (
    _running, _searching, _counting, _reading, _listing, _timing, _summing,
)  # fmt: skip


def _continued(words: str, kind: Kind | None) -> list[Want]:
    """A clause without a verb of its own: "and tests", "and in London"."""
    bare = words.strip(" .?!").removeprefix("the ")
    if kind == "time" and (place := zone(words) or zone_of(bare)):
        return [_want("time", place, zone=place)]
    if (
        kind == "list"
        and re.fullmatch(r"[\w-]+(?:\s+(?:folder|directory))?", bare)
        and bare.lower() not in _NO_FOLDER
    ):
        return [_want("list", bare.split()[0], path=bare.split()[0])]
    if kind == "search" and (term := quoted(words) or (bare if re.fullmatch(r"[\w-]+", bare) else None)):
        return [_want("search", term, content=re.escape(term))]
    return []


def _folder(words: str) -> str:
    if name := quoted(words):
        return name
    for found in _NAMED_FOLDER.finditer(words):
        name = found["a"] or found["b"]
        if name.lower() not in _NO_FOLDER:
            return name
    return "."


def _is_folder(path: str) -> bool:
    return path.endswith("/") or path in (".", "..") or ("/" in path and "." not in path.rpartition("/")[2])


def _own(words: str, tools: Schemas) -> Iterator[Want]:
    """A tool of the user's own, written as a call: ``lookup(city="Bern", days=2)`` or ``lookup("Bern")``."""
    for name, schema in tools.items():
        at = re.search(rf"(?<![\w.]){re.escape(name)}\s*\(", words)
        if at is None:
            continue
        try:
            call = ast.parse(words[at.start() : words.rindex(")") + 1], mode="eval").body
            if isinstance(call, ast.Call):
                given = dict(
                    zip(schema.get("properties", {}), map(ast.literal_eval, call.args), strict=False)
                )
                given |= {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
                yield Want("own", name, name, given)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
