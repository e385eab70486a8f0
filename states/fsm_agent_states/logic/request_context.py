"""Text around the history in each request, which is not part of any transcript.

The prompt of the session is frozen and names neither model nor session. These lines follow it, so that they
are true after a fallback or a compaction into another session, and no byte before them changes. The ephemeral
prompt comes next, and the last row says how much of the window is left. (Why: decision 94.)
"""

from __future__ import annotations

import json

from fsm_agent.conversation.effects import FINAL, ModelRequest, OutputMode, OutputSpec, ToolSpec
from fsm_agent.conversation.token_meter import threshold
from fsm_agent.conversation.wire import format_of
from fsm_agent.conversation.wire.options import mode_of, without_answer_patterns
from fsm_agent_states.turn import TurnState

BY_TOOL = f"Give the final answer by a call of {FINAL}, alone: its arguments are the answer."
IN_WORDS = (
    "The final answer has to be JSON that fits the JSON schema below, and nothing else: no word before or"
    " behind it.\n\n{schema}"
)
BUDGET_HINT = (
    "[Added by this program, not by the user: this reply is number {number} of at most {limit} for this task,"
    " so {left} can follow. Do what matters most first, and answer before they are used up.]"
)
CONTEXT_HINT = (
    "[Added by this program, not by the user: this conversation fills {percent} % of the room that it has."
    " {then} Read only what you need, and keep notes short.]"
)
SUMMED_UP = "When it is full, older messages are replaced by a summary."
ENDS = "When it is full, it cannot continue."


def prompt_for(turn: TurnState) -> str:
    """Return the prompt of the session, with the configured lines about the current session and model."""
    wanted, runtime = turn.settings.prompt, turn.setup.runtime
    lines = [f"Session: {turn.session_id}"] if wanted.session_line else []
    lines += [f"Model: {runtime.model} ({runtime.provider})"] if wanted.model_line else []
    return "\n".join([turn.setup.system_prompt.rstrip(), *lines])


def ephemeral_for(turn: TurnState) -> str:
    """Return the text after the prompt: first the agent's, then the turn's, then the form of the answer."""
    words = turn.settings.prompt.ephemeral, turn.setup.ephemeral_prompt, words_for(turn)
    return "\n\n".join(text for one in words if (text := one.strip()))


def around_chars(turn: TurnState) -> int:
    """Return the characters that no compaction can remove, apart from tools and the newest request."""
    rows = sum(len(row.content) for row in turn.settings.prompt.prefill)
    return len(prompt_for(turn)) + len(ephemeral_for(turn)) + rows


def hint_for(turn: TurnState, request: ModelRequest) -> str:
    """Return the hint to the model about the remaining iterations and room; empty as long as there is enough,
    and when the model can only answer."""
    if request.toolless:
        return ""
    return "\n".join(filter(None, (_budget(turn), _context(turn, request.estimate))))


def _budget(turn: TurnState) -> str:
    share, limit = turn.settings.prompt.budget_hint, turn.limit("iterations")
    number = turn.count("iterations") + (not turn.count("opened"))  # an open block is already counted
    if share is None or not share * limit <= number <= limit:
        return ""
    return BUDGET_HINT.format(number=number, limit=limit, left=limit - number)


def _context(turn: TurnState, tokens: int) -> str:
    share, window, compression = (
        turn.settings.prompt.context_hint,
        turn.setup.runtime.window,
        turn.settings.compression,
    )
    if share is None or window is None:
        return ""
    room = threshold(window, compression) if compression.enabled else window
    if tokens < share * room:
        return ""
    percent = min(100, tokens * 100 // room)
    return CONTEXT_HINT.format(percent=percent, then=SUMMED_UP if compression.enabled else ENDS)


# The type of the answer


def output_mode(turn: TurnState) -> OutputMode | None:
    """Return how the next request asks for the answer; ``None`` for a turn without a type."""
    spec, setup = turn.setup.output, turn.setup
    if spec is None:
        return None
    others = any(tool.name != FINAL for tool in setup.tools)
    return mode_of(
        spec,
        setup.runtime,
        turn.recovery.repairs_done,
        toolless=turn.count("summary_calls") > 0,
        tools=others,
    )


def schema_to_enforce(turn: TurnState) -> OutputSpec | None:
    """Return the schema that the provider enforces on the next answer, if it can."""
    spec = turn.setup.output
    if spec is None or output_mode(turn) != "native":
        return None
    return without_answer_patterns(spec) if "grammar" in turn.recovery.repairs_done else spec


def words_for(turn: TurnState) -> str:
    """Return the text after the prompt about the form of the answer. The grammar of a local server enforces a
    schema that the model does not see, so the text describes that schema, too."""
    mode, spec = output_mode(turn), turn.setup.output
    if spec is None or (mode == "native" and not turn.setup.runtime.local):
        return ""
    if mode == "tool":
        return BY_TOOL
    return IN_WORDS.format(schema=json.dumps(spec.schema, ensure_ascii=False))


def _tools_to_list(turn: TurnState) -> list[ToolSpec]:
    """Return the tools that the next request names."""
    by_tool = output_mode(turn) == "tool"
    return [tool for tool in turn.setup.tools if not tool.deferred and (by_tool or tool.name != FINAL)]


def tools_for(turn: TurnState) -> bytes | None:
    """Return the tool list, written once for each shape in this turn; ``None`` when there are no tools."""
    setup, repairs = turn.setup, turn.recovery.repairs_done
    shape = f"{setup.runtime.api_mode} {'grammar' in repairs} {output_mode(turn)}"
    if shape in setup.tools_written:
        return setup.tools_written[shape]
    if not (listed := _tools_to_list(turn)):
        return None
    return setup.keep_written(shape, format_of(setup.runtime.api_mode).tools(listed, repairs))
