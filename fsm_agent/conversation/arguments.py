"""The arguments of a tool call: read from the model's text, fitted to the tool's schema, compared as paths.

Damage never becomes ``{}``, because that is a valid call, and text that may be half of something is never
run."""

from __future__ import annotations

import contextlib
import json
import math
import os.path
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, NoReturn

from fsm_agent.conversation import lenient_json
from fsm_agent.conversation.coercion import coerce
from fsm_agent.conversation.nesting import OverlyNestedError, json_of

__all__ = ["Kind", "Parsed", "coerce", "parse", "paths_conflict"]

Kind = Literal["ok", "cut", "bad", "not_object"]
_FENCE = re.compile(r"```[\w+-]*[ \t]*\r?\n?")


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a call's text came to. ``error`` is one short line for the model, empty when ``ok``.

    ``ok``: ``value`` is the object; ``repaired`` when the text was not strict JSON. ``cut``: the text stops
    early and must not be run; ``value`` is set when only closers are missing at its end, for a caller who
    knows by other means that the reply was whole. ``bad``: damaged, not cut. ``not_object``: JSON, but an
    array, a string or the like."""

    kind: Kind
    value: dict[str, Any] | None = None
    repaired: bool = False
    error: str = ""


def parse(text: str | None) -> Parsed:
    """Read the arguments of a call. Nothing at all means no arguments. Never raises."""
    body = (text or "").strip().removeprefix("\ufeff").strip()
    if not body:
        return Parsed("ok", {})
    try:
        return _object(json_of(body, _STRICT), repaired=False)
    except OverlyNestedError as error:
        return Parsed("bad", error=str(error))
    except ValueError:
        return _repaired(_unfenced(body))


def paths_conflict(a: str, b: str, cwd: str | os.PathLike[str]) -> bool:
    """Is one path the other one, or inside it? Relative paths start at ``cwd``; an empty path is ``cwd``
    itself.

    Lexical only, so that it stays pure: ``.`` and ``..`` are resolved and case is folded as the platform's
    ``normcase`` does. Whoever wants links to be followed gives paths without any."""
    left, right = _components(a, cwd), _components(b, cwd)
    shorter = min(len(left), len(right))
    return left[:shorter] == right[:shorter]


def _components(path: str, cwd: str | os.PathLike[str]) -> tuple[str, ...]:
    whole = os.path.normcase(os.path.normpath(os.path.join(cwd, path)))
    return PurePath("/" + whole.lstrip("/") if whole.startswith("//") else whole).parts


def _repaired(body: str) -> Parsed:
    with contextlib.suppress(ValueError):
        return _object(json_of(body, _STRICT), repaired=True)
    if not body.endswith(("}", "]")):
        return Parsed(
            "cut", error=f"the JSON stops after {len(body):,} characters, before its closing bracket"
        )
    try:
        value, complete = lenient_json.read(body)
    except lenient_json.EndedError as error:
        return Parsed("cut", error=str(error))
    except lenient_json.DamagedError as error:
        return Parsed("bad", error=str(error))
    if not complete:
        half = value if isinstance(value, dict) else None
        return Parsed("cut", half, repaired=True, error="the JSON stops before its last closing bracket")
    return _object(value, repaired=True)


def _object(value: Any, *, repaired: bool) -> Parsed:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value, repaired = json_of(value.strip(), _STRICT), True
    if isinstance(value, dict):
        return Parsed("ok", value, repaired)
    return Parsed("not_object", error=f"arguments must be a JSON object, not {_JSON_NAMES[type(value)]}")


def _unfenced(body: str) -> str:
    opener = _FENCE.match(body)
    return body[opener.end() :].removesuffix("```").strip() if opener else body


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("infinite")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_JSON_NAMES = {
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    type(None): "null",
}
_STRICT = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
