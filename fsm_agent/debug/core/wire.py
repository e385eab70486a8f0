"""The request on the wire of a past move, composed again: its bytes are not stored, because they follow from
the rest."""

from __future__ import annotations

import json
from typing import Any

from fsm_agent.composition.turn_wiring import DIGEST, continued, recompose
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.rewind.positions import position_of


def composed(store: Store, turn_id: str, at: int) -> dict[str, Any]:
    """``body``: the JSON that went out from the state at this position, as a value; or ``why`` there is none.
    ``note`` says when it may differ from what was sent."""
    position = position_of(store, turn_id, at)
    if position.snapshot["state"] != "CallLLM":
        return {
            "body": None,
            "why": f"{position.snapshot['state']} does not send the conversation to the model",
        }
    turn = continued(position)
    recompose(turn)
    request = turn.call.request
    if request is None:
        return {"body": None, "why": "no request was made here"}
    body = json.loads(request.body)
    note = (
        ""
        if position.turn.digest == DIGEST
        else "composed again by another version of the table than ran then"
    )
    return {
        "body": body,
        "mode": turn.setup.runtime.api_mode,
        "bytes": len(request.body),
        "estimate": request.estimate,
        "note": note,
    }
