"""Earlier sessions, for the model that works on this one (AGT-04). No model is asked."""

# The context engine's tool looks back. Compactions set messages aside and delete none, so the model can
# recover exact words (`look_back`) instead of asking again.

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.search.session_recall import (
    LIMIT,
    MOST,
    MOST_MESSAGES,
    WIDEST,
    WINDOW,
    Around,
    SessionRecall,
    around,
    by_words,
    count_compacted,
    recall_around,
    recall_by_words,
    recent,
)
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.tool_context import here


class Recollection:
    """The sessions of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def session_search(
        self,
        query: Annotated[str, Field(max_length=2_000)] = "",
        message: int | None = None,
        limit: Annotated[int, Field(ge=1, le=MOST)] = LIMIT,
        window: Annotated[int, Field(ge=0, le=WIDEST)] = WINDOW,
        roles: list[Literal["user", "assistant", "tool"]] | None = None,
        days: Annotated[float | None, Field(gt=0, lt=100_000)] = None,
    ) -> dict[str, Any]:
        """Look into earlier sessions with this person: what was said, decided and done. The present one is
        left out.

        With query, the sessions that fit best, each with the messages around the best hit and its first and
        last ones. With message, more of the conversation around one message. With neither, the most recent
        sessions.

        Args:
            query: Words to look for; "quoted words" must be adjacent.
            message: The id of a message that an earlier search gave.
            limit: How many sessions.
            window: How many messages on each side of a hit.
            roles: Only messages of these.
            days: Only the last days: 7 for a week.
        """
        database, current = self._store.database, here().session.id
        try:
            if message is not None:
                return _object(around(database, message, window))
            if query.strip():
                found = by_words(
                    database, query, current, limit=limit, window=window, roles=roles or (), days=days
                )
                return _object(found)
            return {"sessions": [plain(asdict(one)) for one in recent(database, current, limit)]}
        except (ConfigError, StoreError) as error:
            raise ToolFailure(str(error)) from None


def recall_tool(store: Store) -> Tool:
    """Make ``session_search`` over a store."""
    return tool(concurrency="parallel", effect="pure")(Recollection(store).session_search)


def _object(answer: Around | SessionRecall) -> dict[str, Any]:
    return {name: plain(value) for name, value in asdict(answer).items() if value not in ("", None, False)}


def plain(value: Any) -> Any:
    """Times as people read them, and without what is empty or false: a model pays for every word."""
    if isinstance(value, dict):
        return {
            key: datetime.fromtimestamp(one, UTC).strftime("%Y-%m-%d %H:%M UTC")
            if key == "at"
            else plain(one)
            for key, one in value.items()
            if one not in ("", None, False) and not (key == "standing" and one == "current")
        }
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


# ----------------------------------------------------------------------------------------------------
# What compactions took out of the conversation, for the model that works on it (AGT-10). No model is asked.
#
# A compaction puts rows aside and never deletes them, so what a summary left out can be had back, word for
# word. ``session_search`` looks everywhere else.


NAME = "look_back"


class LookingBack:
    """The calling session and its ancestors."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look_back(
        self,
        query: Annotated[str, Field(max_length=2_000)] = "",
        message: int | None = None,
        limit: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 5,
        window: Annotated[int, Field(ge=0, le=WIDEST)] = 2,
    ) -> dict[str, Any]:
        """Look into what was taken out of this conversation when it became too long, and is now only summed
        up in it.

        With query, the messages that fit best, word for word. With message, more of the conversation around
        one of them. With neither, how much there is. Use it before you ask the person for something that was
        said already.

        Args:
            query: Words to look for; "quoted words" must be adjacent.
            message: The id of a message that an earlier search gave.
            limit: How many messages a search gives.
            window: How many messages on each side of the one that message names.
        """
        database, session = self._store.database, here().session.id
        try:
            if message is not None:
                found = recall_around(database, session, message, window)
                if not found:
                    raise ToolFailure(f"Message {message} was not taken out of this conversation.")
                return {"messages": [plain(asdict(one)) for one in found]}
            if query.strip():
                return {
                    "messages": [
                        plain(asdict(one)) for one in recall_by_words(database, session, query, limit)
                    ]
                }
            return {"taken_out": count_compacted(database, session)}
        except StoreError as error:
            raise ToolFailure(str(error)) from None


def lookback_tool(store: Store) -> Tool:
    """Make ``look_back`` over a store."""
    return tool(concurrency="parallel", effect="pure")(LookingBack(store).look_back)
