"""Tables in the languages of other state machine engines: SCXML, and the JSON of XState.

Both know decision lists: of the transitions of a state for an event, they take the first with an open guard.
So a rung becomes a transition, a guard an expression over counters and limits, and a row that resets and
spends becomes assignments. ``tests/peers/test_statecharts.py`` drives the engines and compares rows."""

from fsm_agent.diagram.statecharts.scxml import as_scxml, from_scxml
from fsm_agent.diagram.statecharts.xstate import as_xstate, from_xstate

__all__ = ["as_scxml", "as_xstate", "from_scxml", "from_xstate"]
