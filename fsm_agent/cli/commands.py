"""What a person may say to a session besides messages, at the terminal and in an editor."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fsm_agent.agent import Agent
from fsm_agent.cli.screen import clean, preview
from fsm_agent.errors import ConfigError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "compact": ("Make the conversation shorter", "what its summary should dwell on"),
    "title": ("Say what the session is called, or give it a title", "the title"),
    "undo": (
        "Take back the last turn, and put the files of this folder back as they were before",
        "how many turns, and perhaps: words, to leave the files as they are",
    ),
}
"""What each does, and what may stand behind it."""


async def obey(agent: Agent, command: str, words: str) -> str:
    """Do what one of ``COMMANDS`` says and return an answer in words. Raises ``ConfigError``, ``SessionBusy``
    and ``StoreError``."""
    match command:
        case "compact":
            return compacted(await agent.acompact(words) is not None)
        case "title":
            title = agent.rename(words) if words else agent.title
            return (
                f"The session is called “{clean(title)}”."
                if title
                else "The session gets its title with its first turn."
            )
    asked = re.fullmatch(r"(\d*)\s*(words)?", words)
    if asked is None:
        raise ConfigError("so many turns cannot be undone", words, "a number, and perhaps: words")
    done = await agent.aundo(int(asked[1] or 1), files=not asked[2])
    kept = "" if asked[2] else f" {done.files or 'There was no checkpoint of files to put back.'}"
    return (
        f"Taken back, from “{preview(done.asked, 60)}” on; the transcript has {done.rows} messages now.{kept}"
    )


def compacted(gained: bool) -> str:
    """Say how a compaction went."""
    return "Done." if gained else "The conversation stays as it is."
