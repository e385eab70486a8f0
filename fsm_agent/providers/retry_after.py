"""How long a provider asks to wait, from its headers or its error body."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_DURATION = re.compile(r"\s*+(\d{1,15}(?:\.\d{1,15})?)\s*+s?\s*+\Z")
_UNITS = re.compile(
    r"(?:(\d{1,5})d)?(?:(\d{1,5})h)?(?:(\d{1,5})m)?(?:(\d{1,5}(?:\.\d{1,9})?)s)?(?:(\d{1,5})ms)?"
)
_SIZES = (86_400, 3_600, 60, 1, 0.001)
_HINTS = frozenset(
    {
        "retry_after",
        "retry_after_seconds",
        "retrydelay",
        "resets_in_seconds",
        "resets_at",
        "reset_at",
        "x_ratelimit_reset",
    }
)
_EPOCH = 1e9
"""Figures above this are points in time (in seconds; a thousand times that: milliseconds), not durations."""
LITTLE = 0.05
"""Of a limit: with less than this part of it left a person is told."""
_NO_NAME = ("x", "ratelimit", "remaining", "anthropic")


def retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    """Seconds from ``now``, never negative; 0 means at once, ``None`` that nothing was said.

    ``retry-after-ms`` wins over ``Retry-After`` (seconds or an HTTP date), and both over hints in the body:
    ``retry_after``, ``retryDelay`` (Google), ``resets_in_seconds``, ``resets_at``, ``X-RateLimit-Reset``
    (OpenRouter's metadata). Last of all the headers of limits are looked at: those that have nothing left say
    when they have again (``x-ratelimit-reset-tokens: 6m0s``, ``anthropic-ratelimit-requests-reset``)."""
    lower = {name.lower(): value for name, value in headers.items()}
    if (milliseconds := _seconds(lower.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = lower.get("retry-after")
    if value is not None:
        seconds = _seconds(value)
        return seconds if seconds is not None else _until(value, now)
    hinted = next(_hints(body, now, 5), None)
    return max(_resets(lower, now), default=0.0) or None if hinted is None else hinted


def little_left(headers: Mapping[str, str], now: float) -> str:
    """Say in a few words which limits of a provider have little left (``x-ratelimit-remaining-tokens``,
    ``anthropic-ratelimit-requests-remaining`` and the like), and when they have more again; nothing when
    there is enough, or nothing was said."""
    lower = {name.lower(): value for name, value in headers.items() if "ratelimit" in name.lower()}
    return "; ".join(_scarce(lower, now))


def _scarce(headers: Mapping[str, str], now: float) -> Iterator[str]:
    for name, value in headers.items():
        left, most = _seconds(value), _seconds(headers.get(name.replace("remaining", "limit")))
        if "remaining" not in name or left is None or not most or left > most * LITTLE:
            continue
        words = (word for word in name.split("-") if word not in _NO_NAME)
        wait = next(_reset(headers.get(name.replace("remaining", "reset"), ""), now), None)
        soon = "" if wait is None else f" for {math.ceil(wait)} s"
        yield f"{left:,.0f} of {most:,.0f} {' '.join(words) or 'requests'} left{soon}"


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """When the limits that are used up begin anew; headers in lower case."""
    for name, left in headers.items():
        if "ratelimit" not in name or "remaining" not in name or _seconds(left) != 0:
            continue
        yield from _reset(headers.get(name.replace("remaining", "reset"), ""), now)


def _reset(value: str, now: float) -> Iterator[float]:
    if (figure := _seconds(value)) is not None:
        yield _from_epoch(figure, now)
    elif (units := _UNITS.fullmatch(value.strip())) is not None and value.strip():
        yield sum(float(one) * size for one, size in zip(units.groups("0"), _SIZES, strict=True))
    else:
        yield from _at(value, now)


def _at(moment: str, now: float) -> Iterator[float]:
    with suppress(ValueError, OverflowError):
        yield max(0.0, datetime.fromisoformat(moment).astimezone(UTC).timestamp() - now)


def _hints(body: Any, now: float, depth: int) -> Iterator[float]:
    if isinstance(body, Mapping):
        for key, value in body.items():
            hint = str(key).lower().replace("-", "_") in _HINTS
            if hint and (seconds := _seconds(value)) is not None:
                yield _from_epoch(seconds, now)
        body = list(body.values())
    if depth and isinstance(body, list):
        for part in body:
            yield from _hints(part, now, depth - 1)


def _from_epoch(figure: float, now: float) -> float:
    if figure < _EPOCH:
        return figure
    return max(0.0, (figure / 1000 if figure > 1000 * _EPOCH else figure) - now)


def _seconds(value: Any) -> float | None:
    """A non-negative finite number, as a number or as text such as ``34`` or ``34.2s``."""
    if isinstance(value, str):
        found = _DURATION.match(value)
        value = float(found[1]) if found else None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        return None
    return float(value)


def _until(date: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except (TypeError, ValueError, OverflowError):
        return None
