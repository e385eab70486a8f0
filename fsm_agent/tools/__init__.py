"""Tools: functions that a model may call.

>>> from fsm_agent.tools import tool
>>> @tool(concurrency="parallel", effect="pure")
... def lookup(city: str, days: int = 1) -> str:
...     "Weather for a city."

A handler may raise ``ToolFailure`` to report an error in its own words, and poll ``cancelled()`` to stop
early."""

from fsm_agent.tools.cancel import cancelled
from fsm_agent.tools.decorator import Tool, as_tool, tool
from fsm_agent.tools.failure import ToolFailure
from fsm_agent.tools.runner import ToolRunner

__all__ = ["Tool", "ToolFailure", "ToolRunner", "as_tool", "cancelled", "tool"]
