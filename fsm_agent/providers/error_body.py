"""What an error body says: its sentence, its codes, all its texts. Pure functions over decoded JSON or raw
text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fsm_agent.conversation.nesting import json_of
from fsm_agent.support.texts import clean

LIMIT = 500
"""Longest message in characters (ERR-27)."""
_DEPTH = 6
_TITLE = re.compile(r"<title[^<>]*>(.*?)(?:</title>|\Z)", re.IGNORECASE | re.DOTALL)
_HTML = re.compile(r"^\s*(<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_HIDDEN = re.compile(
    r"<script\b.*?(?:</script>|\Z)|<style\b.*?(?:</style>|\Z)|<[^<>]+>", re.IGNORECASE | re.DOTALL
)
MOST = 200_000
"""Characters that are looked at of one text; connections read less of an error."""


def one_line(text: str, limit: int = LIMIT) -> str:
    """Collapse white space, and a page of HTML to its title or visible text; cut to ``limit`` characters."""
    text = clean(text[:MOST])
    if _HTML.match(text):
        title = _TITLE.search(text)
        text = "HTML page: " + html.unescape(title[1] if title else _HIDDEN.sub(" ", text))
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def error_of(body: Any) -> Any:
    """The part of a body that tells of the error: the ``error`` field, or the body itself. Some vendors send
    a list."""
    if isinstance(body, list):
        body = next((part for part in body if isinstance(part, Mapping)), body)
    return body.get("error") or body if isinstance(body, Mapping) else body


def sentence(body: Any, depth: int = _DEPTH) -> str:
    """The sentence meant for people; of an aggregator's error also what the provider behind it said."""
    error = error_of(body)
    if isinstance(error, str):
        return _sentence_in(error, depth)
    if not isinstance(error, Mapping) or not depth:
        return ""
    values = (error.get(key) for key in ("message", "detail", "msg"))
    own = next((_sentence_in(value, depth) for value in values if isinstance(value, str) and value), "")
    upstream = _upstream(error)
    said = sentence(upstream, depth - 1) if upstream is not None else ""
    return f"{own}: {said}" if own and said and said != own else own or said


def codes(body: Any) -> list[str]:
    """Every structured code, best first: names before types before numbers, the outer error before nested
    ones."""
    found: list[tuple[int, str]] = []
    for depth, error in enumerate(_errors(body)):
        details = error.get("details")
        named = details.get("error_code") if isinstance(details, Mapping) else None
        for rank, value in enumerate((error.get("code") or named, error.get("type"), error.get("status"))):
            if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value):
                number = str(value).isdigit()
                found.append(((100 if number else 0) + rank * 10 + depth, clean(str(value))))
    return list(dict.fromkeys(value for _, value in sorted(found, key=lambda pair: pair[0])))


def texts(body: Any) -> list[str]:
    """Every text anywhere in a body, JSON inside texts included; ``metadata`` marks an aggregator's
    wrapper."""
    found = list(_texts(body, _DEPTH))
    error = error_of(body)
    if isinstance(error, Mapping) and isinstance(error.get("metadata"), Mapping):
        found.append("metadata")
    return found


def _errors(body: Any) -> Iterator[Mapping[str, Any]]:
    """The error, then those nested in its message or metadata."""
    for _ in range(_DEPTH):
        body = error_of(body)
        if isinstance(body, str):
            body = error_of(_json_in(body))
        if not isinstance(body, Mapping):
            return
        yield body
        nested = _upstream(body)
        body = nested if nested is not None else _json_in(str(body.get("message") or ""))


def _upstream(error: Mapping[str, Any]) -> Any:
    """The error of the provider behind an aggregator; its raw text may be JSON."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, Mapping) else None
    if isinstance(raw, str):
        return _json_in(raw) or raw
    return raw


def _sentence_in(text: str, depth: int) -> str:
    """A message that holds JSON is replaced by the message inside."""
    inner = _json_in(text) if depth else None
    return (sentence(inner, depth - 1) if inner is not None else "") or text


def _json_in(text: str) -> Any:
    """The JSON object inside a text, or ``None``."""
    text = text[:MOST]
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end:
        return None
    try:
        value = json_of(text[start : end + 1])
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None


def _texts(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield one_line(value, 4 * LIMIT)
        if depth and (inner := _json_in(value)) is not None:
            yield from _texts(inner, depth - 1)
    elif depth and isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part, depth - 1)
