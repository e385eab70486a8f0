"""Finding clauses, paths, places and sums in a sentence. Plain patterns: nothing here understands
anything."""

from __future__ import annotations

import ast
import functools
import re
import zoneinfo
from collections.abc import Iterator

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
