"""From outcomes to rows: what the store keeps (all of it) and what the model sees (a preview when it is
long)."""

from __future__ import annotations

from collections.abc import Sequence

from fsm_agent.conversation.effects import Saved, Spill, ToolOutcome
from fsm_agent.conversation.messages import Content, Message
from fsm_agent.conversation.wire import CHARS_PER_TOKEN
from fsm_agent.support.texts import clean, shorten
from fsm_agent_states.logic.calls import Checked
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

STEER = "\n\n[a message from the user, sent while you were working: {text}]"


def result_rows(turn: TurnState, calls: Sequence[Checked]) -> Asks[list[Message]]:
    """One tool row for each call, in call order. Results over their limit, and then the largest of a reply
    that is over its limit as a whole, go to a file; their preview and the path are what is sent."""
    texts = [clean(_outcome(item).text) for item in calls]
    previews: list[str | None] = [None] * len(calls)
    for index in _too_long(turn, calls, texts):
        saved: Saved = yield Spill(calls[index].call.id, texts[index])
        where = (
            f"the whole result is in {saved.path}" if saved.path else f"it could not be saved: {saved.error}"
        )
        previews[index] = shorten(texts[index], turn.settings.tool.preview_chars, where)
    return [
        Message(
            "tool",
            _content(texts[i], _outcome(item)),
            tool_call_id=item.call.id,
            name=item.call.name,
            sent=previews[i],
        )
        for i, item in enumerate(calls)
    ]


def _content(text: str, outcome: ToolOutcome) -> Content:
    return [{"type": "text", "text": text}, *outcome.content] if outcome.content else text


def _outcome(item: Checked) -> ToolOutcome:
    assert item.outcome is not None, f"call {item.call.id} has no outcome"
    return item.outcome


def _too_long(turn: TurnState, calls: Sequence[Checked], texts: Sequence[str]) -> list[int]:
    limits, window = turn.settings.tool, turn.setup.runtime.window
    one, all_of_them = limits.max_result_chars, limits.turn_result_chars
    if window:
        one = min(one, max(8_000, int(0.15 * window * CHARS_PER_TOKEN)))
        all_of_them = min(all_of_them, max(16_000, int(0.30 * window * CHARS_PER_TOKEN)))
    chosen = [
        i
        for i, item in enumerate(calls)
        if len(texts[i]) > ((item.spec and item.spec.max_result_chars) or one)
    ]
    rest = sorted((i for i in range(len(calls)) if i not in chosen), key=lambda i: -len(texts[i]))
    total = sum(len(texts[i]) for i in rest)
    for index in rest:
        if total <= all_of_them or len(texts[index]) <= limits.preview_chars:
            break
        chosen.append(index)
        total -= len(texts[index])
    return sorted(chosen)
