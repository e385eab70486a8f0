"""What a Messages request must know of its model: how long a reply may be, and how thinking is asked for.

Figures are those that Anthropic publishes, in tokens; they change without notice. A model that no row names
counts as a new one. Since API version 2026-10-21 no Claude model takes a temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fsm_agent.conversation.wire.efforts import nearest
from fsm_agent.conversation.wire.form import Ask
from fsm_agent.settings.model import Effort

Thinking = Literal["none", "budget", "adaptive"]
NEWEST = 128_000
BUDGETS: dict[Effort, int] = {
    "none": 0, "minimal": 2_048, "low": 4_096, "medium": 8_192, "high": 16_384, "xhigh": 32_768, "max": 65_536
}  # fmt: skip
"""Tokens for thoughts, at most what the longest reply leaves."""
ROOM = 4_096
"""Tokens that a reply has at least besides its thoughts (FMT-07)."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """``output``: the longest reply; ``thinking``: how it is asked for, adaptively up to ``efforts``;
    ``temperature``: whether it may be set."""

    output: int
    thinking: Thinking
    temperature: bool = False
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")

    def budget(self, effort: Effort | None) -> int:
        """Return the tokens for thoughts at this effort; 0 for none."""
        return min(BUDGETS[effort], self.output - ROOM) if effort and self.thinking == "budget" else 0


_NOT_XHIGH: tuple[Effort, ...] = ("low", "medium", "high", "max")
_FAMILIES: dict[str, ModelFamily] = {
    "claude-2": ModelFamily(4_096, "none"),
    "claude-3": ModelFamily(4_096, "none"),
    "claude-3-5": ModelFamily(8_192, "none"),
    "claude-3-7": ModelFamily(64_000, "budget"),
    "claude-haiku-4": ModelFamily(64_000, "budget"),
    "claude-sonnet-4": ModelFamily(64_000, "budget"),
    "claude-sonnet-4-6": ModelFamily(64_000, "adaptive", efforts=_NOT_XHIGH),
    "claude-opus-4": ModelFamily(32_000, "budget"),
    "claude-opus-4-5": ModelFamily(64_000, "budget"),
    "claude-opus-4-6": ModelFamily(NEWEST, "adaptive", efforts=_NOT_XHIGH),
    "claude-opus-4-7": ModelFamily(NEWEST, "adaptive"),
    "claude-opus-4-8": ModelFamily(NEWEST, "adaptive"),
    "claude": ModelFamily(NEWEST, "adaptive"),
    "": ModelFamily(NEWEST, "budget", temperature=True),
}
"""By what the name of the model contains; the longest wins. The last row is for models of other makers on
this wire."""


def family_of(model: str) -> ModelFamily:
    """Return the family that a model's name belongs to; a name that none fits counts as a new one."""
    name = model.lower().replace(".", "-")
    return _FAMILIES[max((part for part in _FAMILIES if part in name), key=len)]


def output_cap(family: ModelFamily, ask: Ask) -> int:
    """``max_tokens``: mandatory on this wire. The limit that somebody set, else as much as the model can;
    with room for thoughts that were asked for, and below the window."""
    most, window = ask.runtime.most_output or family.output, ask.runtime.window
    cap = most if ask.raised else ask.output_cap or most
    if (budget := family.budget(ask.effort)) and not ask.firm:
        cap = max(cap, budget + ROOM)
    return max(1, cap if window is None else min(cap, window - 1))


def thinking_params(family: ModelFamily, effort: Effort | None, cap: int) -> dict[str, Any]:
    """The parameters that ask for thinking within a reply of ``cap`` tokens; empty when nobody asked or there
    is no room."""
    if effort in (None, "none") or family.thinking == "none":
        return {}
    if family.thinking == "adaptive":
        return {
            "thinking": {"type": "adaptive", "display": "summarized"},
            "output_config": {"effort": nearest(effort, family.efforts)},
        }
    budget = family.budget(effort)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}} if cap >= budget + ROOM else {}
