"""The wire copy of a conversation: a pure function of history, scaffolding and the provider's view, computed
once a row.

History and wire copy are different values. ``WireCopy`` grows with the history; a ``Format`` knows one API
mode."""

from __future__ import annotations

from fsm_agent.conversation.wire.copy import WireCopy, format_of
from fsm_agent.conversation.wire.form import Ask, Format, View

__all__ = ["Ask", "Format", "View", "WireCopy", "format_of"]
