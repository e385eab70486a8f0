"""Tools: functions that a model may call.

>>> from fsm_agent.tools import tool
>>> @tool(concurrency="parallel", effect="pure")
... def lookup(city: str, days: int = 1) -> str:
...     "Weather for a city."

A handler may raise ``ToolFailure`` to report an error in its own words, ``ResultLater`` when its result
arrives later, ``WakeAt`` to suspend the turn until a time, and poll ``cancelled()`` to stop early."""

from fsm_agent.tools.decorator import Tool, as_tool, tool
from fsm_agent.tools.result import ResultLater, ToolFailure, WakeAt
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.tools.signature import RunContext, cancelled

__all__ = [
    "ResultLater", "RunContext", "Tool", "ToolFailure", "ToolRunner", "WakeAt", "as_tool", "cancelled",
    "tool",
]  # fmt: skip
