"""Who may begin and who may end a conversation on each wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fsm_agent.conversation.effects import ApiMode

Speaker = Literal["", "user", "assistant", "tool"]
"""The role of a row; ``""`` where there is none."""


@dataclass(frozen=True, slots=True)
class WireTakes:
    """Who may begin and who may end a conversation on one wire, so that every server of the kind takes it."""

    first: frozenset[Speaker]
    tail: frozenset[Speaker]


WIRES: Mapping[ApiMode, WireTakes] = MappingProxyType(
    {
        # servers with a chat template want the user first; several refuse an assistant row at the end
        "chat_completions": WireTakes(frozenset({"user"}), frozenset({"user", "tool"})),
        # an assistant row at the end is a prefill, which newer models and thinking refuse; results are
        # user rows there
        "anthropic_messages": WireTakes(frozenset({"user"}), frozenset({"user", "tool"})),
        # a list of items, of which any may begin; a reply to a reply is nothing that was asked for
        "codex_responses": WireTakes(frozenset({"user", "assistant"}), frozenset({"user", "tool"})),
    }
)
