"""How the model in use is asked for an answer of the turn's type. It follows from the model and what was
learned of it, so a fallback may be asked in another way; the last word is asked for in words alone."""

from __future__ import annotations

import json

from fsm_agent.conversation.effects import FINAL, OutputMode, OutputSpec, ToolSpec
from fsm_agent.conversation.wire.answers import mode_of, without_answer_patterns
from fsm_agent_states.turn import TurnState

BY_TOOL = f"Give the final answer by a call of {FINAL}, alone: its arguments are the answer."
IN_WORDS = (
    "The final answer has to be JSON that fits the JSON schema below, and nothing else: no word before or"
    " behind it.\n\n{schema}"
)


def output_mode(turn: TurnState) -> OutputMode | None:
    """Return the way in which the next request asks for the answer; ``None`` for a turn without a type."""
    spec, setup = turn.setup.output, turn.setup
    if spec is None:
        return None
    others = any(tool.name != FINAL for tool in setup.tools)
    return mode_of(
        spec, setup.runtime, turn.recovery.repairs_done, toolless=turn.count("graces") > 0, tools=others
    )


def held_to(turn: TurnState) -> OutputSpec | None:
    """Return what the provider is to hold the next answer to, if it can."""
    spec = turn.setup.output
    if spec is None or output_mode(turn) != "native":
        return None
    return without_answer_patterns(spec) if "grammar" in turn.recovery.repairs_done else spec


def words_for(turn: TurnState) -> str:
    """Return what the model is told of its answer behind the prompt. A grammar holds a model to a schema that
    it does not see, so it is told that of a local server, too."""
    mode, spec = output_mode(turn), turn.setup.output
    if spec is None or (mode == "native" and not turn.setup.runtime.local):
        return ""
    if mode == "tool":
        return BY_TOOL
    return IN_WORDS.format(schema=json.dumps(spec.schema, ensure_ascii=False))


def listed_tools(turn: TurnState) -> list[ToolSpec]:
    """Return the tools that the next request names."""
    by_tool = output_mode(turn) == "tool"
    return [tool for tool in turn.setup.tools if not tool.deferred and (by_tool or tool.name != FINAL)]
