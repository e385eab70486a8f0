"""Loop detection among tool calls of one turn: the same failure again, the same tool failing, the same result
again.

Figures: warnings after 2 identical failures, 3 failures of one tool, 2 identical
results of a read-only tool; hard stops, when nobody is present to stop the turn, after 5, 8 and 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.conversation.call_key import signature
from fsm_agent.request import Effect
from fsm_agent.settings.model import GuardrailSettings

REMEMBERED = 128
"""Calls whose counts are kept, the newest: they are stored with every move. A loop among more calls than that
is slow enough."""


@dataclass(slots=True)
class Guardrails:
    """Counts of this turn. ``halted`` is the reason of a hard stop, for the exit text and the result's
    ``guardrail``."""

    failed_calls: dict[str, int] = field(default_factory=dict)
    failed_tools: dict[str, int] = field(default_factory=dict)
    same_results: dict[str, tuple[str, int]] = field(default_factory=dict)
    halted: dict[str, Any] | None = None

    def refuses(
        self, name: str, arguments: Mapping[str, Any], limits: GuardrailSettings, hard: bool
    ) -> str | None:
        """A reason not to run this call at all, or ``None``. A refusal halts the turn after the batch."""
        if not hard:
            return None
        key = signature(name, arguments)
        failures = self.failed_calls.get(key, 0)
        if failures >= limits.stop_exact:
            return self._halt(
                "exact_failure", name, failures, f"{name} failed {failures} times with these arguments"
            )
        repeats = self.same_results.get(key, ("", 0))[1]
        if repeats >= limits.stop_no_progress:
            return self._halt("no_progress", name, repeats, f"{name} gave the same result {repeats} times")
        return None

    def note(
        self,
        name: str,
        arguments: Mapping[str, Any],
        ok: bool,
        result: str,
        effect: Effect,
        limits: GuardrailSettings,
        hard: bool,
    ) -> str:
        """Count one result; the text to append to it as a warning, or nothing."""
        key = signature(name, arguments)
        if ok:
            self.failed_calls.pop(key, None)
            self.failed_tools.pop(name, None)
            return self._note_success(key, result, effect, limits)
        exact = self.failed_calls.get(key, 0) + 1
        _newest(self.failed_calls, key, exact)
        self.failed_tools[name] = same = self.failed_tools.get(name, 0) + 1
        if hard and same >= limits.stop_same:
            self._halt("same_tool", name, same, f"{name} failed {same} times in a row")
        if exact >= limits.warn_exact:
            return (
                f"[loop warning: this exact call failed {exact} times; change the arguments or the approach]"
            )
        if same >= limits.warn_same:
            return f"[loop warning: {name} failed {same} times; find out why before calling it again]"
        return ""

    def _note_success(self, key: str, result: str, effect: Effect, limits: GuardrailSettings) -> str:
        if effect != "pure":
            return ""
        digest = hashlib.sha256(result.encode("utf-8", "replace")).hexdigest()
        before, times = self.same_results.get(key, ("", 0))
        times = times + 1 if digest == before else 1
        _newest(self.same_results, key, (digest, times))
        return (
            f"[the same result {times} times: use what you have]"
            if times >= max(2, limits.warn_no_progress)
            else ""
        )

    def _halt(self, kind: str, tool: str, times: int, reason: str) -> str:
        self.halted = {"kind": kind, "tool": tool, "times": times, "reason": reason}
        return reason


def _newest(counts: dict[str, Any], key: str, value: Any) -> None:
    """Set the value as the newest one, and forget the oldest beyond the limit."""
    counts.pop(key, None)
    counts[key] = value
    while len(counts) > REMEMBERED:
        del counts[next(iter(counts))]
