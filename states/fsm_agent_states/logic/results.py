"""What the calls of a reply leave behind: their rows, and the files that were to change and did not.

The store keeps all of a result, and the model sees a preview when it is long. A failed change of a file is
named under the answer, because a person who reads "done" must not believe it (EXEC-33).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fsm_agent.conversation.effects import Persist, Saved, Spill, ToolOutcome, ToolSpec
from fsm_agent.conversation.messages import Content, Message
from fsm_agent.conversation.wire import CHARS_PER_TOKEN
from fsm_agent.support.texts import clean, one_line, shorten
from fsm_agent_states.logic.calls import Checked
from fsm_agent_states.logic.parts import ToolRound
from fsm_agent_states.logic.status_lines import tell_parts
from fsm_agent_states.logic.visit import Asks
from fsm_agent_states.turn import TurnState

LEFT_OUT = (
    "\n\n[{left} more calls of the same reply were not run and are forgotten: at most {most} of one reply are"
    " run. Make those that are still needed again.]"
)
STEER = "\n\n[a message from the user, sent while you were working: {text}]"
SHOWN = 10
"""Files that are named; of more the number is told."""


def store_results(
    turn: TurnState, calls: Sequence[Checked], steer: Sequence[str], news: Sequence[str]
) -> Asks[None]:
    """Store one row for each call, in call order. What was left out of the reply, a message from the user,
    and reports on tasks in the background are added to the last of them."""
    # Into the last result, before it is stored: a stored row never changes (decision 6).
    assert turn.call.reply is not None
    left = len(turn.call.reply.tool_calls) - len(calls)
    added = [LEFT_OUT.format(left=left, most=len(calls))] if left else []
    added += [STEER.format(text="\n".join(steer))] if steer else []
    if added := [*added, *(f"\n\n{report}" for report in news)]:
        last = calls[-1]
        assert last.outcome is not None
        last.outcome = replace(last.outcome, text=last.outcome.text + "".join(added))
    note_files(turn, calls)
    rows = yield from _result_rows(turn, calls)
    turn.append(*rows)
    turn.tooling.end_round(
        ToolRound(item.call.name, item.call.arguments, row.text, _outcome(item).status == "ok")
        for item, row in zip(calls, rows, strict=True)
    )
    yield Persist(tuple(rows))
    yield from tell_parts(turn, rows)


def _result_rows(turn: TurnState, calls: Sequence[Checked]) -> Asks[list[Message]]:
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


# Files that did not change


def note_files(turn: TurnState, calls: Sequence[Checked]) -> None:
    """Remember the files of calls that failed; a later call that changes the same file supersedes them."""
    for item in calls:
        if (
            item.spec is None
            or item.arguments is None
            or item.outcome is None
            or not changes_files(item.spec)
        ):
            continue
        for path in _paths(item.spec, item.arguments):
            where = posixpath.normpath(posixpath.join(turn.setup.workdir, path))
            status = item.outcome.status
            problem = "" if status == "ok" else f"{one_line(path, 200)} ({item.spec.name}: {status})"
            turn.tooling.note_file(where, problem)


def changes_files(tool: ToolSpec) -> bool:
    """Say whether the tool may change files that its arguments name."""
    return bool(tool.path_arguments) and tool.effect != "pure"


def footer(turn: TurnState) -> str:
    """What to add to the final answer, or nothing."""
    if not turn.tooling.unchanged_files or not turn.settings.tool.failed_files_footer:
        return ""
    lines = [f"- {line}" for line in turn.tooling.unchanged_files.values()]
    more = [f"- and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return (
        "\n\n[Files that were not changed, or perhaps not, because a tool failed:\n"
        + "\n".join(lines[:SHOWN] + more)
        + "]"
    )


def _paths(tool: ToolSpec, arguments: Mapping[str, Any]) -> list[str]:
    return [value for name in tool.path_arguments if isinstance(value := arguments.get(name), str) and value]
