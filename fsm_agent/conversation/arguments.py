"""The arguments of a tool call: parsing the model's text, fitting values to the tool's schema, comparing
paths.

Damaged text never becomes ``{}``, because that is a valid call, and text that may be incomplete is never run.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import math
import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, NoReturn

from fsm_agent.support.texts import MAX_JSON_DEPTH, STRICT_JSON, OverlyNestedError, json_of

__all__ = [
    "DamagedError",
    "Kind",
    "Parsed",
    "coerce",
    "parse",
    "paths_conflict",
    "read_leniently",
]


# Fit values to a JSON schema where a model wrote the right value in the wrong type.
#
# Only lossless conversions are made. Other values stay unchanged, so that the tool's own validation reports
# the problem to the model.


Schema = Mapping[str, Any]

SCHEMA_DEPTH = 100
SCHEMA_STEPS = 50_000
"""Maximum schemas visited for one call. A schema that refers to itself twice would otherwise take forever."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,400}(\.0+)?")
_DECIMAL = re.compile(r"[+-]?([0-9]++(?:\.[0-9]*+)?|\.[0-9]++)([eE][+-]?[0-9]++)?")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def coerce(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return the arguments with each value converted to the type in ``schema`` (a JSON schema object), if the
    conversion is exact.

    ``"42"`` → 42, ``"3.0"`` → 3, ``"true"`` → true, a JSON string → array or object, a scalar → an array of
    one, ``"null"`` → null if null is allowed; inside properties, items, unions and references. The given
    mapping and its values are not changed."""
    value = _Coercer(schema).fit(dict(arguments), schema, 0)
    return value if isinstance(value, dict) else dict(arguments)


class _Coercer:
    __slots__ = ("root", "steps")

    def __init__(self, root: Schema) -> None:
        self.root, self.steps = root, 0

    def over_limit(self, depth: int) -> bool:
        self.steps += 1
        return depth > SCHEMA_DEPTH or self.steps > SCHEMA_STEPS

    def fit(self, value: Any, schema: object, depth: int) -> Any:
        """Return ``value`` converted to ``schema``, or ``value`` itself."""
        if self.over_limit(depth) or not isinstance(schema, Mapping):
            return value
        if "$ref" in schema:
            value = self.fit(value, self.resolve(schema["$ref"]), depth + 1)
        match schema:
            case {"allOf": [*parts]}:
                for part in parts:
                    value = self.fit(value, part, depth + 1)
        match schema:
            case {"anyOf": [_, *_] as branches} | {"oneOf": [_, *_] as branches}:
                value = self.fit_any(value, branches, depth + 1)
        types = _types(schema)
        if "null" in types and value == "null" and value not in _list(schema.get("enum")):
            return None
        if types and not _is_any(value, types):
            value = self.convert(value, schema, types, depth)
        return self.inside(value, schema, depth)

    def fit_any(self, value: Any, branches: Sequence[Any], depth: int) -> Any:
        """Fit a value to a union: keep it if it fits a branch, else use the first branch to which it can be
        converted."""
        if value == "null" and any(self.accepts(None, branch, depth) for branch in branches):
            return None
        for branch in branches:
            if self.accepts(value, branch, depth):
                return value
        for branch in branches:
            fitted = self.fit(value, branch, depth)
            if self.accepts(fitted, branch, depth):
                return fitted
        return value

    def convert(self, value: Any, schema: Schema, types: Sequence[str], depth: int) -> Any:
        for name in types:
            converted = _scalar(value, name)
            if converted is not None:
                return converted
        if "array" in types and isinstance(value, str | int | float):
            item = self.fit(value, schema.get("items"), depth + 1)
            if self.accepts(item, schema.get("items", {}), depth + 1):
                return [item]
        return value

    def inside(self, value: Any, schema: Schema, depth: int) -> Any:
        if isinstance(value, dict):
            properties = schema.get("properties")
            known = properties if isinstance(properties, Mapping) else {}
            other = schema.get("additionalProperties")
            return {key: self.fit(item, known.get(key, other), depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            first = _list(schema.get("prefixItems"))
            rest = schema.get("items")
            return [
                self.fit(item, first[index] if index < len(first) else rest, depth + 1)
                for index, item in enumerate(value)
            ]
        return value

    def accepts(self, value: Any, schema: object, depth: int) -> bool:
        """Return whether ``value`` has the types, names, and constants of ``schema``. Ranges and patterns are
        not checked."""
        if self.over_limit(depth) or not isinstance(schema, Mapping):
            return schema is not False
        if "$ref" in schema and not self.accepts(value, self.resolve(schema["$ref"]), depth + 1):
            return False
        if not all(self.accepts(value, part, depth + 1) for part in _list(schema.get("allOf"))):
            return False
        branches = _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if branches and not any(self.accepts(value, branch, depth + 1) for branch in branches):
            return False
        types = _types(schema)
        if types and not _is_any(value, types):
            return False
        if "const" in schema and value != schema["const"]:
            return False
        if "enum" in schema and value not in _list(schema["enum"]):
            return False
        return self.accepts_inside(value, schema, depth + 1)

    def accepts_inside(self, value: Any, schema: Schema, depth: int) -> bool:
        if isinstance(value, list):
            first, rest = _list(schema.get("prefixItems")), schema.get("items", True)
            return all(
                self.accepts(item, first[index] if index < len(first) else rest, depth)
                for index, item in enumerate(value)
            )
        if not isinstance(value, dict):
            return True
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        other = schema.get("additionalProperties", True)
        return all(name in value for name in _list(schema.get("required"))) and all(
            self.accepts(item, known.get(key, other), depth) for key, item in value.items()
        )

    def resolve(self, reference: object) -> object:
        """Return the target of a reference inside the same document (``#/$defs/Name``), or ``None``."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        target: object = self.root
        for step in filter(None, reference[1:].split("/")):
            if not isinstance(target, Mapping):
                return None
            target = target.get(step.replace("~1", "/").replace("~0", "~"))
        return target


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _types(schema: Schema) -> Sequence[str]:
    given = schema.get("type")
    if isinstance(given, str):
        return (given,)
    if given is None and isinstance(schema.get("properties"), Mapping):
        return ("object",)
    return [name for name in _list(given) if isinstance(name, str)]


def _is_any(value: Any, types: Sequence[str]) -> bool:
    """Return whether the value has one of the JSON types. A boolean is not a number, and an unknown type name
    accepts everything."""
    for name in types:
        wanted = _PYTHON_TYPES.get(name)
        if wanted is None or (
            isinstance(value, wanted) and (name == "boolean" or not isinstance(value, bool))
        ):
            return True
    return False


def _scalar(value: Any, name: str) -> Any:
    """Return ``value`` as the JSON type ``name``, or ``None`` if there is no exact conversion."""
    if isinstance(value, float) and name == "integer":
        return int(value) if math.isfinite(value) and value.is_integer() else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if name == "boolean":
        return {"true": True, "false": False}.get(text.lower())
    if name in ("integer", "number") and _WHOLE.fullmatch(text) and (name == "integer" or "." not in text):
        return int(text.partition(".")[0])
    if name == "number" and _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if name in ("array", "object"):
        return _container(text, list if name == "array" else dict)
    return None


def _container(text: str, wanted: type) -> Any:
    if text[:1] not in ("[", "{"):
        return None
    try:
        value = json_of(text)
    except ValueError:
        return None
    return value if isinstance(value, wanted) else None


Kind = Literal["ok", "cut", "bad", "not_object"]
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n?")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing a call's arguments. ``error`` is one short line for the model, empty if ``ok``.

    ``ok``: ``value`` is the object; ``repaired``: the text was not strict JSON. ``cut``: the text ends early
    and must not be run; ``value`` is set if only closing brackets are missing at the end, for a caller that
    knows by other means that the reply was complete. ``bad``: damaged, not cut. ``not_object``: JSON, but an
    array, a string, or the like."""

    kind: Kind
    value: dict[str, Any] | None = None
    repaired: bool = False
    error: str = ""


def parse(text: str | None) -> Parsed:
    """Parse the arguments of a call. Empty text means no arguments. Never raises."""
    body = (text or "").strip().removeprefix("\ufeff").strip()
    if not body:
        return Parsed("ok", {})
    try:
        return _object(json_of(body, STRICT_JSON), repaired=False)
    except OverlyNestedError as error:
        return Parsed("bad", error=str(error))
    except ValueError:
        return _repair(_without_fence(body))


def paths_conflict(a: str, b: str, cwd: str | os.PathLike[str]) -> bool:
    """Return whether the paths are equal or one is inside the other. Relative paths start at ``cwd``; an
    empty path is ``cwd`` itself.

    Purely lexical: ``.`` and ``..`` are resolved, and case is folded as by the platform's ``normcase``. For
    links to be followed, the caller must resolve them first."""
    left, right = _components(a, cwd), _components(b, cwd)
    shorter = min(len(left), len(right))
    return left[:shorter] == right[:shorter]


def _components(path: str, cwd: str | os.PathLike[str]) -> tuple[str, ...]:
    whole = os.path.normcase(os.path.normpath(os.path.join(cwd, path)))
    return PurePath("/" + whole.lstrip("/") if whole.startswith("//") else whole).parts


def _repair(body: str) -> Parsed:
    with contextlib.suppress(ValueError):
        return _object(json_of(body, STRICT_JSON), repaired=True)
    if not body.endswith(("}", "]")):
        return Parsed(
            "cut", error=f"the JSON stops after {len(body):,} characters, before its closing bracket"
        )
    try:
        value, complete = read_leniently(body)
    except EndedError as error:
        return Parsed("cut", error=str(error))
    except DamagedError as error:
        return Parsed("bad", error=str(error))
    if not complete:
        half = value if isinstance(value, dict) else None
        return Parsed("cut", half, repaired=True, error="the JSON stops before its last closing bracket")
    return _object(value, repaired=True)


def _object(value: Any, *, repaired: bool) -> Parsed:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value, repaired = json_of(value.strip(), STRICT_JSON), True
    if isinstance(value, dict):
        return Parsed("ok", value, repaired)
    return Parsed("not_object", error=f"arguments must be a JSON object, not {_JSON_NAMES[type(value)]}")


def _without_fence(body: str) -> str:
    opener = _FENCE.match(body)
    return body[opener.end() :].removesuffix("```").strip() if opener else body


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}


# ----------------------------------------------------------------------------------------------------
# A JSON reader that tolerates the typical mistakes of models, and nothing else.
#
# Tolerated: control characters in strings, trailing commas, single quotes, ``\'``,
# ``True``/``False``/``None``, and missing or superfluous closing brackets. Missing ones are supplied in the
# order of the stack, and only complete strings count, so a brace inside a string closes nothing. Not
# tolerated, because it would be guessing: bare words, missing commas or colons, unknown escapes, ``NaN``,
# comments, words around the value.


MAX_STEPS = 20_000
"""Maximum values, names, and escapes read of one text. Repair is meant for text that models write; requesting
a longer list again is faster than reading it here."""
_SPACE, _CLOSERS = re.compile(r"[ \t\r\n]*+"), re.compile(r"[]} \t\r\n]*+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![\w.+-])")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_PLAIN = {quote: re.compile(rf"[^\\{quote}]*") for quote in "\"'"}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HALF = re.compile("[\ud800-\udbff]")
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class DamagedError(Exception):
    """The text cannot be read without guessing; the message says what was expected and where."""


class EndedError(DamagedError):
    """The text ends inside a string, where a value is expected, or between a key and its value."""


def read_leniently(text: str) -> tuple[Any, bool]:
    """Return the value, and whether every container was closed before the text ended.

    Raises ``EndedError`` if the missing end cannot be supplied by closing brackets, and ``DamagedError``
    otherwise."""
    return _JsonReader(text).document()


class _JsonReader:
    __slots__ = ("at", "ended", "stack", "steps", "text")

    def __init__(self, text: str) -> None:
        self.text, self.at, self.ended, self.steps = text, 0, False, 0
        self.stack: list[str] = []

    def document(self) -> tuple[Any, bool]:
        value = self.value()
        self.at = _CLOSERS.match(self.text, self.at).end()  # type: ignore[union-attr]  # they hide nothing
        if self.peek():
            self.fail("the end of the text")
        return value, not self.ended

    def peek(self) -> str:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # matches everywhere
        return self.text[self.at : self.at + 1]

    def fail(self, expected: str) -> NoReturn:
        if self.at >= len(self.text):
            raise EndedError(f"expected {expected}, but the text ends")
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        near = self.text[self.at : self.at + 20]
        raise DamagedError(f"expected {expected} at line {line} column {column}, found {near!r}")

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            self.fail("a shorter text, because this one is damaged")

    def value(self) -> Any:
        self.step()
        char = self.peek()
        if char == "{":
            return self.object()
        if char == "[":
            return self.array()
        if char in _PLAIN:
            return self.string(char)
        if match := _NUMBER.match(self.text, self.at):
            return self.number(match)
        word = _WORD.match(self.text, self.at)
        if word is None or word.group() not in _WORDS:
            self.fail("a value (text needs quotes)")
        self.at = word.end()
        return _WORDS[word.group()]

    def number(self, match: re.Match[str]) -> int | float:
        whole = not (match.group(1) or match.group(2))
        try:
            number = int(match.group()) if whole else float(match.group())
        except ValueError:  # more digits than Python converts
            self.fail("a shorter number")
        if number in (float("inf"), float("-inf")):
            self.fail("a number that is not infinite")
        self.at = match.end()
        return number

    def object(self) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self.open("}")
        while not self.at_end("}"):
            quote = self.peek()
            if quote not in _PLAIN:
                self.fail("a name in double quotes")
            name = self.string(quote)
            if self.peek() != ":":
                self.fail("a colon")
            self.at += 1
            members[name] = self.value()
            self.comma("}")
        return members

    def array(self) -> list[Any]:
        items: list[Any] = []
        self.open("]")
        while not self.at_end("]"):
            items.append(self.value())
            self.comma("]")
        return items

    def open(self, closer: str) -> None:
        if len(self.stack) >= MAX_JSON_DEPTH:
            self.fail(f"at most {MAX_JSON_DEPTH} levels of nesting")
        self.stack.append(closer)
        self.at += 1

    def at_end(self, closer: str) -> bool:
        """Return whether the innermost container has ended. The closing bracket of an outer container, or the
        end of the text, ends it as well."""
        char = self.peek()
        if char == closer:
            self.at += 1
        elif char == "":
            self.ended = True
        elif char not in self.stack:
            return False
        self.stack.pop()
        return True

    def comma(self, closer: str) -> None:
        char = self.peek()
        if char == ",":
            self.at += 1
        elif char and char not in self.stack:
            self.fail(f"a comma or {closer!r}")

    def string(self, quote: str) -> str:
        parts: list[str] = []
        self.at += 1
        while True:
            plain = _PLAIN[quote].match(self.text, self.at)
            assert plain is not None  # matches everywhere, even the empty string
            parts.append(plain.group())
            self.at = plain.end()
            char = self.text[self.at : self.at + 1]
            if char == quote:
                self.at += 1
                return _join_surrogates("".join(parts))
            if not char:
                self.fail("the end of a string")
            self.step()
            parts.append(self.escape())

    def escape(self) -> str:
        code = self.text[self.at + 1 : self.at + 2]
        if code in _ESCAPES:
            self.at += 2
            return _ESCAPES[code]
        digits = _HEX.match(self.text, self.at + 2) if code == "u" else None
        if digits is None:
            if len(self.text) - self.at < (6 if code == "u" else 2):
                self.at = len(self.text)
            self.fail("a JSON escape (write a backslash as \\\\)")
        self.at = digits.end()
        return chr(int(digits.group(), 16))


def _join_surrogates(text: str) -> str:
    """Combine escaped surrogate pairs into one character, as in strict JSON."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# ----------------------------------------------------------------------------------------------------
# Find the tool that a model meant by a name that does not exist.


MAX_NAME = 64
"""Maximum characters of a name, as providers allow; longer names are not compared, because comparison is
quadratic."""
MAX_WRITTEN = 1_000
"""Characters read of a given name: the name, and any text that the model added to it."""

_QUOTES = "\"'`<>“”‘’«»"
_AFTER_QUOTE = re.compile(f"[{_QUOTES}].*", re.DOTALL)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[-\s_]+")


def repair_name(name: str, known: Sequence[str], cutoff: float = 0.7) -> str | None:
    """Return the single name in ``known`` that ``name`` stands for, or ``None``.

    An exact match wins; then spelling (quotes and anything after them, case, dashes, camel case, a "tool"
    suffix once or twice); then similarity by ``difflib`` of at least ``cutoff`` (0 to 1). Two equally good
    matches count as no match."""
    bare = _AFTER_QUOTE.sub("", name[:MAX_WRITTEN].strip().lstrip(_QUOTES)).strip()
    if not bare:
        return None
    if bare in known:
        return bare
    spelled: dict[str, set[str]] = {}
    for candidate in known:
        spelled.setdefault(_snake(candidate), set()).add(candidate)
    for spelling in _spellings(bare):
        if spelling in spelled:
            return _only(spelled[spelling])
    if len(bare) > MAX_NAME:
        return None
    return _alike(list(_spellings(bare)), spelled, cutoff)


def _alike(spellings: Sequence[str], spelled: dict[str, set[str]], cutoff: float) -> str | None:
    scores: dict[str, float] = {}
    for known in spelled:
        best = max(difflib.SequenceMatcher(None, known, spelling).ratio() for spelling in spellings)
        if best >= cutoff:
            scores[known] = best
    winners = {
        name for known, score in scores.items() if score == max(scores.values()) for name in spelled[known]
    }
    return _only(winners)


def _spellings(bare: str) -> Iterator[str]:
    """Yield the name in snake case, then without its "tool" suffix, at most twice."""
    spelling = _snake(bare)
    yield spelling
    for _ in range(2):
        shorter = spelling.removesuffix("tool").rstrip("_")
        if shorter in ("", spelling):
            return
        spelling = shorter
        yield spelling


def _snake(name: str) -> str:
    return _SEPARATORS.sub("_", _HUMP.sub("_", name)).strip("_").lower()


def _only(names: set[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


# The identity of a tool call: the same tool with the same arguments, in any order.


def signature(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a hash of the name and the arguments as sorted compact JSON."""
    return hashlib.sha256(_SORTED.encode([name, arguments]).encode("utf-8", "replace")).hexdigest()


_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str)
