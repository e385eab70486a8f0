"""Parents and children in the store: a child's turn names its parent's, and has not been forked from it."""

from __future__ import annotations

from fsm_agent.conversation.result import ChildTurn, TurnUsage
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.sealed import loads


def children_of(store: Store, turn_id: str) -> list[ChildTurn]:
    """The children of a turn, in the order in which they began; also those of an earlier process."""
    prefix = f"c-{turn_id}."
    with store.database.reading() as c:
        rows = c.execute(
            "SELECT t.id, t.session, t.outcome, t.exit, t.result FROM turns t WHERE t.session >= ? AND"
            " t.session < ? AND t.parent = ? AND t.forked_at IS NULL ORDER BY t.began",
            (prefix, prefix[:-1] + "/", turn_id),
        ).fetchall()
    return [_child(*row) for row in rows]


def _child(
    turn_id: str, session: str, outcome: str | None, exit_reason: str | None, result: str | None
) -> ChildTurn:
    said = loads(result) if result else {}
    return ChildTurn(
        turn_id=turn_id,
        session_id=session,
        task_id=said.get("task_id", ""),
        outcome=outcome,
        turn_exit_reason=exit_reason,
        api_calls=said.get("api_calls", 0),
        attempts=said.get("attempts", 0),
        usage=TurnUsage(**said.get("usage_turn", {})),
        estimated_cost_usd=said.get("estimated_cost_usd"),
    )
