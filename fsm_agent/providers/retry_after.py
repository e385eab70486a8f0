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


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """When the limits that are used up begin anew; headers in lower case."""
    for name, left in headers.items():
        if "ratelimit" not in name or "remaining" not in name or _seconds(left) != 0:
            continue
        value = headers.get(name.replace("remaining", "reset"), "")
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
