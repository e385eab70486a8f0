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
CHAT: Mapping[str, tuple[str, str]] = {
    "help": ("", "this text"),
    "model": ("[NAME]", "which model answers; with a name, go on with that one"),
    "new": ("", "begin a new session"),
    "sessions": ("[NAME]", "the sessions used last; with a name, go on in that one"),
    "resume": ("", "go on with a turn that was left unfinished"),
    "title": ("[WORDS]", "what the session is called, or is to be called"),
    "compact": ("[TOPIC]", "make the conversation shorter; its summary dwells on the topic"),
    "cost": ("", "tokens and cost of the session, and how full the window is"),
    "tools": ("", "what the model may use"),
    "path": ("", "the states that the last turn went through"),
    "undo": ("[N] [words]", "take back the last turn, or N; with words, leave the files as they are"),
    "queue": ("TEXT", "after the running turn"),
    "steer": ("TEXT", "to the running turn, with its next tool result"),
    "interrupt": ("TEXT", "instead of the running turn"),
    "image": ("FILE", "an image that goes with the next message"),
    "file": ("FILE", "a PDF, a text or audio that goes with the next message"),
    "exit": ("", "leave"),
}
"""The commands of the chat: what may stand behind each, and what it does."""
KEYS = """\
Write a message and press Enter. Alt-Enter, or a backslash at the end of the line, begins a new line.
@path brings a file along. Tab completes commands, paths, models and sessions.
Ctrl-C interrupts a running turn and keeps its text so far, twice leaves. Ctrl-D leaves.
What you write while a turn runs is answered after it (or as interrupt.second_message says).
"""


def help_text() -> str:
    """Return what can be done in the chat."""
    width = max(len(f"{name} {words}") for name, (words, _) in CHAT.items())
    return KEYS + "\n".join(f"/{f'{name} {words}':<{width}}  {does}" for name, (words, does) in CHAT.items())


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
