"""Reading what a person writes: with editing and history at a terminal, plain lines from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.screen import clean
from fsm_agent.support.files import private_folder, touch
from fsm_agent.support.threads import in_daemon_thread

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

Reader = Callable[[str], Awaitable[str | None]]
"""Gives the next message, or ``None`` at the end. It is given what was typed of it already."""
SIGN, CONTINUED = "› ", "· "
BELOW = {"bottom-toolbar": "noreverse", "bottom-toolbar.text": "noreverse ansibrightblack"}
"""How the line below the prompt looks."""
HISTORY = "chat_history"
"""Name of the file in the home directory that keeps what was written."""


def piped(live: ProgressView) -> Reader:
    """Lines of standard input, each shown before it is answered; a trailing backslash joins the next line."""

    async def read(begun: str) -> str | None:
        text = begun
        while line := await in_daemon_thread(sys.stdin.readline):
            text += line.rstrip("\n")
            if not text.endswith("\\"):
                break
            text = text[:-1] + "\n"
        if not (line or text):
            return None
        live.write(Text(f"\n{SIGN}{clean(text)}"))
        return text

    return read


def typed(home: Path, toolbar: Callable[[], str]) -> Reader:
    """Messages from the terminal. Ctrl-C clears the line, and leaves when the line is empty for the second
    time. ``toolbar`` says what stands below the line."""
    session = _session(home, toolbar)

    async def read(begun: str) -> str | None:
        pressed = 0
        while pressed < 2:
            try:
                return str(await session.prompt_async(default=begun))
            except EOFError:
                return None
            except KeyboardInterrupt:
                pressed, begun = 1 if session.default_buffer.text else pressed + 1, ""
                print("(Ctrl-C again, or Ctrl-D, leaves)" if pressed == 1 else "")
        return None

    return read


def _session(home: Path, toolbar: Callable[[], str]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.styles import Style

    from fsm_agent.cli.typing_help import ChatCompleter

    return PromptSession(
        SIGN,
        history=typed_before(home),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=CONTINUED,
        enable_open_in_editor=False,
        completer=ChatCompleter(home),
        complete_while_typing=False,
        reserve_space_for_menu=6,
        bottom_toolbar=lambda: [("class:bottom-toolbar.text", _fitted(f"  {toolbar()}"))],
        style=Style.from_dict(
            {"bottom-toolbar": "noreverse", "bottom-toolbar.text": "noreverse ansibrightblack"}
        ),
    )


def _fitted(line: str) -> str:
    """A line as long as the terminal is wide at most; the editor would cut it without a sign."""
    from prompt_toolkit.application import get_app

    text = Text(line)
    text.truncate(get_app().output.get_size().columns, overflow="ellipsis")
    return text.plain


def typed_before(home: Path) -> History:
    """Kept in the home directory; only in memory when that cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        touch(private_folder(home) / HISTORY)
    except OSError:
        return InMemoryHistory()
    return FileHistory(home / HISTORY)


def _keys() -> KeyBindings:
    """Enter sends unless the line ends with a backslash; Alt-Enter begins a new line."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
