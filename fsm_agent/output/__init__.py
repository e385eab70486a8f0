"""Answers of a type: what ``Agent(output_type=…)`` and ``run_conversation(…, output_type=…)`` take, and how
the text of a model becomes a value of it."""

from fsm_agent.output.json_schema import JsonSchema
from fsm_agent.output.output_type import NOT_TAKEN, NOTHING, OutputType, ValidOutput

__all__ = ["NOTHING", "NOT_TAKEN", "JsonSchema", "OutputType", "ValidOutput"]
