"""``fsm-agent approvals``: what was approved or forbidden for good."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

from fsm_agent.cli.screen import clean
from fsm_agent.cli.sessions import store_of
from fsm_agent.grants import Grants


def list_approvals(home: str | None, as_json: bool) -> int:
    """One line for each pattern."""
    grants = _grants(home).all()
    if as_json:
        rows = [{"pattern": one.pattern.text, "tool": one.pattern.tool, "verdict": one.verdict, "at": one.at} for one in grants]
        print(json.dumps(rows))
        return 0
    for one in grants:
        day = datetime.fromtimestamp(one.at, UTC).strftime("%Y-%m-%d")
        print(f"{one.verdict:<5}  {day}  {' '.join(clean(one.pattern.text).split())}")
    if not grants:
        print("Nothing was approved or forbidden for good.", file=sys.stderr)
    return 0


def remove_approval(home: str | None, pattern: str) -> int:
    """Forget one. Raises ``ConfigError`` when it is not there."""
    _grants(home).remove(pattern)
    print(f"removed {clean(pattern)}")
    return 0


def _grants(home: str | None) -> Grants:
    store = store_of(home)
    return Grants(lambda: store.database)
