"""Making a conversation shorter, in four phases of pure functions: prune, divide, summarize, assemble.

1. ``prune``: old tool results become one informative line each; nothing is asked of a model.
2. ``divide``: what stays in front, what goes, what stays behind; boundaries never part a call from its
   result, and the newest user request always stays behind, word for word.
3. ``summary``: the prompt for what goes (an update of the summary before it, if there is one), and a summary
    of last resort.
4. ``assemble``: front, summary, rest, in alternating roles.

``protect`` plans the first two before anything is paid; a provider that refuses what is left makes it protect
less, and finally ``cut`` the texts that stay. ``engine`` puts them together, behind a port: an agent can have
another ``ContextEngine``.
"""

from __future__ import annotations

from fsm_agent.conversation.compaction.engine import BuiltInEngine, ContextEngine
from fsm_agent.conversation.compaction.plan import (
    Division,
    Plan,
    Protection,
    assemble,
    divide,
    plan_compaction,
    plan_insisted,
    prune,
    summary_row,
)
from fsm_agent.conversation.compaction.summary import summary_prompt, summary_without_model
from fsm_agent.conversation.effects import LongContext

__all__ = [
    "BuiltInEngine",
    "ContextEngine",
    "Division",
    "LongContext",
    "Plan",
    "Protection",
    "assemble",
    "divide",
    "plan_compaction",
    "plan_insisted",
    "prune",
    "summary_prompt",
    "summary_row",
    "summary_without_model",
]
