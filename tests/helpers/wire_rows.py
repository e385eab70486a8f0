"""Reading a request of any wire back into rows of chat completions: the public reader, under the name that
tests know."""

from __future__ import annotations

from fsm_agent.testing.wires import Row, chat_rows, rows_key

__all__ = ["Row", "chat_rows", "rows_key"]
