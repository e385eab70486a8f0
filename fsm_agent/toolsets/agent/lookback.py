"""What compactions took out of the conversation, for the model that works on it (AGT-10). No model
is asked.

A compaction puts rows aside and never deletes them, so what a summary left out can be had back, word for
word. ``session_search`` looks everywhere else. (Why: decision 59.)"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.search.compacted_messages import (
    MOST,
    compacted_around,
    compacted_by_words,
    count_compacted,
)
from fsm_agent.sessions.store.search.session_recall import WIDEST
from fsm_agent.tools import Tool, ToolFailure, tool
from fsm_agent.toolsets.agent.recall import plain
from fsm_agent.toolsets.tool_context import here

NAME = "look_back"


class LookingBack:
    """The session that calls, and those that it goes on from."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def look_back(
        self,
        query: Annotated[str, Field(max_length=2_000)] = "",
        message: int | None = None,
        limit: Annotated[int, Field(ge=1, le=MOST)] = 5,
        window: Annotated[int, Field(ge=0, le=WIDEST)] = 2,
    ) -> dict[str, Any]:
        """Look into what was taken out of this conversation when it became too long, and stands in it only as
        a summary.

        With query, the messages that fit best, word for word. With message, more of the conversation around
        one of them. With neither, how much there is. Use it before you ask the person for something that was
        said already.

        Args:
            query: Words to look for; "quoted words" must stand together.
            message: The id of a message that an earlier search gave.
            limit: How many messages a search gives.
            window: How many messages on each side of the one that message names.
        """
        database, session = self._store.database, here().session.id
        try:
            if message is not None:
                found = compacted_around(database, session, message, window)
                if not found:
                    raise ToolFailure(f"Message {message} was not taken out of this conversation.")
                return {"messages": [plain(asdict(one)) for one in found]}
            if query.strip():
                return {
                    "messages": [
                        plain(asdict(one)) for one in compacted_by_words(database, session, query, limit)
                    ]
                }
            return {"taken_out": count_compacted(database, session)}
        except StoreError as error:
            raise ToolFailure(str(error)) from None


def lookback_tool(store: Store) -> Tool:
    """Make ``look_back`` over a store."""
    return tool(concurrency="parallel", effect="pure")(LookingBack(store).look_back)
