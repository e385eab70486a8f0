"""``fsm-agent approvals``: what was approved or forbidden, for good or for a session."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from fsm_agent.approvals.rules import Grant, Grants
from fsm_agent.approvals.visible import visible
from fsm_agent.cli.sessions import store_of


def list_approvals(home: str | None, as_json: bool) -> int:
    """One line for each pattern; those that hold in one session only say which, and in which directory."""
    known = _grants(home)
    grants = [*known.all(), *known.of_sessions()]
    if as_json:
        print(json.dumps([_row(one) for one in grants]))
        return 0
    for one in grants:
        day = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d")
        where = f"  (session {one.session}, in {_listed(one.workdir)})" if one.session else ""
        print(f"{one.verdict:<5}  {day}  {_listed(one.pattern.text)}{where}")
    if not grants:
        print("Nothing was approved or forbidden for longer than once.", file=sys.stderr)
    return 0


def _row(grant: Grant) -> dict[str, object]:
    row = {
        "pattern": grant.pattern.text,
        "tool": grant.pattern.tool,
        "verdict": grant.verdict,
        "at": grant.at,
    }
    return row | ({"session": grant.session, "workdir": grant.workdir} if grant.session else {})


def remove_approval(home: str | None, pattern: str, session: str = "") -> int:
    """Forget one, everywhere or in one session; ``pattern`` as it is listed, or as it is. Raises
    ``ConfigError`` when it is not there."""
    known = _grants(home)
    texts = [one.pattern.text for one in (*known.all(), *known.of_sessions())]
    known.remove(next((text for text in texts if _listed(text) == pattern), pattern), session)
    print(f"removed {_listed(pattern)}")
    return 0


def _listed(text: str) -> str:
    """On one line, with nothing left out."""
    return visible(text, sys.stdout.encoding or "utf-8", lines=False)


def _grants(home: str | None) -> Grants:
    store = store_of(home)
    return Grants(lambda: store.database)
