"""``fsm-agent acp``: editors, by the Agent Client Protocol."""

from __future__ import annotations

import logging
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, get_args

from fsm_agent.agent import Agent
from fsm_agent.cli.agent_options import options_of
from fsm_agent.cli.chat import COMMANDS, obey
from fsm_agent.cli.options import SHOWN, CliOptions, with_agent
from fsm_agent.conversation.parts import Kind
from fsm_agent.errors import ConfigError
from fsm_agent.settings.model import Settings
from fsm_agent.support.installation import install_command

if TYPE_CHECKING:
    from fsm_agent.acp import EditorView


@with_agent("session", *SHOWN)
def acp(given: CliOptions) -> int:
    """Serve an editor (Agent Client Protocol).

    Messages pass over standard input and output.
    """
    try:
        from fsm_agent.acp import serve_stdio
    except ImportError as error:
        raise ConfigError(
            f"an editor needs {error.name}, which is not installed", None, install_command("acp")
        ) from None
    host = CommandLineHost(replace(given, source="acp"))
    if sys.stdin is None or not is_pipe(sys.stdin.fileno()):
        raise ConfigError(
            "an editor starts this command and talks to it", None, "a pipe as standard input; see docs/acp.md"
        )
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(OneLineFormatter())
    logging.basicConfig(handlers=[shown], level=logging.WARNING)
    return serve_stdio(host)


def is_pipe(number: int) -> bool:
    """Say whether another process can talk over this file descriptor."""
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class CommandLineHost:
    """Makes the agents of an editor's sessions with the options of the command line."""

    commands = COMMANDS
    obey = staticmethod(obey)

    def __init__(self, given: CliOptions) -> None:
        options, choice = options_of(given, None)
        settings = options["settings"]
        assert isinstance(settings, Settings)
        known = {kind for kind in get_args(Kind) if choice.facts.can_read(kind)}
        store = options["store"]
        assert store is not None
        self.store = store
        self.reads = frozenset(known | set(settings.parts.assume))
        self._given = given

    def agent(self, view: EditorView, workdir: Path, session: str | None) -> Agent:
        """Make the agent of a session that works in ``workdir``. What comes while a turn runs waits, as in
        ``chat``, if nothing else is said. Raises ``ConfigError``."""
        asked = {"clarify": view.clarify} | ({"approval": _allow} if self._given.yes else {})
        options, _ = options_of(replace(self._given, session=session), SimpleNamespace(**asked))
        settings = options["settings"]
        assert isinstance(settings, Settings)
        second = settings.interrupt.second_message or "queue"
        interrupt = settings.interrupt.model_copy(update={"second_message": second})
        approval = settings.approval.model_copy(update={"unanswered": "suspend"})
        settings = settings.model_copy(update={"interrupt": interrupt, "approval": approval})
        return Agent.of({**options, "settings": settings, "workdir": workdir})


def _allow(request: object) -> str:
    return "once"


class OneLineFormatter(logging.Formatter):
    """A record with what was raised, and not where."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        error = record.exc_info[1] if record.exc_info else None
        line = f"{record.levelname} {record.getMessage()}" + (f": {error!r}" if error else "")
        return " ".join(line.split())
