"""What may stand where somebody types: models and sessions, for a shell and for the chat."""

from __future__ import annotations

import contextlib

from fsm_agent.cli.screen import preview
from fsm_agent.errors import FsmAgentError

MOST = 50
"""Sessions that are offered."""


def models(begun: str) -> list[str]:
    """Return the names of providers with their colon, and the demo model."""
    from fsm_agent.providers.profiles import PROFILES

    names = ["offline:demo", *(f"{name}:" for name in PROFILES if name != "offline")]
    return [name for name in names if name.startswith(begun)]


def sessions_of(home: str | None, begun: str) -> list[tuple[str, str]]:
    """Return (id, title) of the sessions used last whose id or title begins so; none where the home cannot be
    read."""
    from fsm_agent.cli.sessions import store_of
    from fsm_agent.sessions.store.reports.records import sessions

    with contextlib.suppress(FsmAgentError):
        found = sessions(store_of(home), MOST, False, None)
        titled = [(one.id, preview(one.title or (one.last.asked if one.last else ""), 60)) for one in found]
        return [(id, title) for id, title in titled if id.startswith(begun) or title.startswith(begun)]
    return []
