"""What a turn had taken by a move: requests, tokens and money, from the fields that are stored of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fsm_agent.conversation.messages import NO_USAGE, Usage
from fsm_agent.debug.core.move_facts import TurnCost
from fsm_agent.settings.model import Settings


def spent_in(snapshot: Mapping[str, Any], settings: Mapping[str, Any]) -> TurnCost:
    """Of a snapshot of a turn that talks to a model; nothing of any other. ``settings`` as they are stored,
    with the prices that a person gave."""
    usages = {
        tuple(json.loads(model)): Usage(**tokens) for model, tokens in snapshot.get("usages", {}).items()
    }
    if "usages" not in snapshot:
        return TurnCost()
    return _spent(snapshot.get("attempts", 0), usages, Settings.of(dict(settings)))


def spent_by(turn: Any) -> TurnCost:
    """Of a turn that runs here."""
    accounting = getattr(turn, "accounting", None)
    if accounting is None:
        return TurnCost()
    return _spent(turn.count("attempts"), dict(accounting.usages), turn.settings)


def _spent(requests: int, usages: Mapping[tuple[str, str], Usage], settings: Settings) -> TurnCost:
    from fsm_agent.providers.prices import total_cost  # the list of prices takes its time to load

    tokens = sum(usages.values(), NO_USAGE).total
    if not usages:
        return TurnCost(requests)
    cost = total_cost(usages, settings.cache.ttl, settings.prices)
    return TurnCost(requests, tokens, 0.0 if cost.status == "included" else cost.usd)
