"""The environment of a running turn: ports, callbacks and events, time, and budgets."""
