"""How much a model can be asked to think: the levels that vendors publish, by the names of their models. They
change without notice."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.settings.model import EFFORTS, Effort

_USUAL: tuple[Effort, ...] = ("low", "medium", "high")
NORMALISED = EFFORTS[:-1]
"""What an aggregator takes for every model, and makes fit."""

_LEVELS: dict[str, tuple[Effort, ...]] = {
    "o1": _USUAL,
    "o1-mini": (),
    "o1-preview": (),
    "o3": _USUAL,
    "o4": _USUAL,
    "codex": _USUAL,
    "gpt-5": ("minimal", *_USUAL),
    "gpt-5-chat": (),
    "gpt-5-codex": _USUAL,
    "gpt-5-pro": ("high",),
    "gpt-5.": ("none", *_USUAL, "xhigh"),
    "gpt-5.1": ("none", *_USUAL),
    "gpt-5.1-codex": _USUAL,
    "gpt-5.1-codex-max": (*_USUAL, "xhigh"),
    "gpt-6": ("none", *_USUAL, "xhigh"),
    "gemini-2.5": _USUAL,
    "gemini-3": _USUAL,
}
"""By the beginning of a name; the longest wins. Without levels: it does not reason, or not in a way that can
be asked for."""


def levels_of(model: str) -> tuple[Effort, ...]:
    """Return the levels that a model takes by name, an aggregator's prefix apart; none for one that cannot be
    asked."""
    name = model.lower().rsplit("/", 1)[-1]
    return _LEVELS[max((part for part in _LEVELS if name.startswith(part)), key=len, default="o1-mini")]


def reasons(model: str) -> bool:
    """Say whether this model reasons and can be asked to: others refuse a request for it."""
    return bool(levels_of(model))


def nearest(wish: Effort, levels: Sequence[Effort]) -> Effort:
    """Return the highest level that is not above the wish, else the lowest there is."""
    return max(levels, key=lambda one: (_rank(one) <= _rank(wish), -abs(_rank(one) - _rank(wish))))


def _rank(effort: Effort) -> int:
    return EFFORTS.index(effort)
