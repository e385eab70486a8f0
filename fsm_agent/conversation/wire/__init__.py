"""The wire copy of a conversation: a pure function of history, scaffolding and the provider's view, computed
once a row.

History and wire copy are different values. ``copy.WireCopy`` grows with the history; a ``form.Format`` knows
one API mode."""
