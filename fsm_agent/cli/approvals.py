"""``fsm-agent approvals``: what was approved or forbidden, for good or for a session."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from fsm_agent.cli.screen import clean
from fsm_agent.cli.sessions import store_of
from fsm_agent.grants import Grant, Grants


def list_approvals(home: str | None, as_json: bool) -> int:
    """One line for each pattern; those that hold in one session only say which, and in which directory."""
    known = _grants(home)
    grants = [*known.all(), *known.of_sessions()]
    if as_json:
        print(json.dumps([_row(one) for one in grants]))
        return 0
    for one in grants:
        day = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d")
        where = f"  (session {one.session}, in {clean(one.workdir)})" if one.session else ""
        print(f"{one.verdict:<5}  {day}  {' '.join(clean(one.pattern.text).split())}{where}")
    if not grants:
        print("Nothing was approved or forbidden for longer than once.", file=sys.stderr)
    return 0


def _row(grant: Grant) -> dict[str, object]:
    row = {"pattern": grant.pattern.text, "tool": grant.pattern.tool, "verdict": grant.verdict, "at": grant.at}
    return row | ({"session": grant.session, "workdir": grant.workdir} if grant.session else {})


def remove_approval(home: str | None, pattern: str, session: str = "") -> int:
    """Forget one, everywhere or in one session. Raises ``ConfigError`` when it is not there."""
    _grants(home).remove(pattern, session)
    print(f"removed {clean(pattern)}")
    return 0


def _grants(home: str | None) -> Grants:
    store = store_of(home)
    return Grants(lambda: store.database)
