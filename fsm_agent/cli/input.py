"""Input from the terminal: the prompt of the chat with its completions, messages typed during a turn, and
answers to questions, which count only if typed after the question.

Answers are read from the terminal itself, bypassing the buffers of this process, which may hold earlier
input."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import select
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from fsm_agent.cli.models import matching_models
from fsm_agent.cli.screen import clean
from fsm_agent.cli.sessions import matching_sessions
from fsm_agent.cli.view import ProgressView
from fsm_agent.support.files import private_folder, touch
from fsm_agent.support.threads import in_daemon_thread

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings


Commands = Mapping[str, tuple[str, str]]
CHAT: Commands = {
    "help": ("", "this text"),
    "model": ("[NAME]", "the model that answers; with a name, switch to that one"),
    "new": ("", "begin a new session"),
    "sessions": ("[NAME]", "the sessions used last; with a name, continue that one"),
    "resume": ("", "continue a turn that was left unfinished"),
    "title": ("[WORDS]", "what the session is called, or is to be called"),
    "compact": ("[TOPIC]", "make the conversation shorter; its summary dwells on the topic"),
    "cost": ("", "tokens and cost of the session, and how full the window is"),
    "tools": ("", "what the model may use"),
    "path": ("", "the states that the last turn went through"),
    "undo": ("[N] [words]", "take back the last turn, or N; with words, leave the files as they are"),
    "queue": ("TEXT", "send the text after the running turn"),
    "steer": ("TEXT", "send the text to the running turn, with its next tool result"),
    "interrupt": ("TEXT", "interrupt the running turn, and send the text"),
    "image": ("FILE", "an image that goes with the next message"),
    "file": ("FILE", "a PDF, a text or audio that goes with the next message"),
    "exit": ("", "leave"),
}
"""The commands of the chat: their arguments, and what they do."""
KEYS = """\
Write a message and press Enter. Alt-Enter, or a backslash at the end of the line, begins a new line.
@path brings a file along, @server:uri a resource of an MCP server.
Tab completes commands, paths, models and sessions.
Ctrl-C interrupts a running turn and keeps its text so far, twice leaves. Ctrl-D leaves.
What you write while a turn runs is answered after it (or as interrupt.second_message says).
"""

LONGEST_COMMAND = 36
"""Maximum columns of a command in the help; a longer one has its description below it."""


def help_text(more: Commands = {}) -> str:  # noqa: B006 - it is only read
    """Return the help of the chat, with ``more`` commands: the prompts of MCP servers."""
    commands = {f"{name} {words}".rstrip(): does for name, (words, does) in {**CHAT, **more}.items()}
    width = min(max(map(len, commands)), LONGEST_COMMAND)
    below = "\n" + " " * (1 + width)
    return KEYS + "\n".join(
        f"/{command:<{width}}{below if len(command) > width else ''}  {does}".rstrip()
        for command, does in commands.items()
    )


Waiting = Callable[[], bool]
"""Says whether the answer is still needed."""
QUIET = 0.1
"""Seconds without a line after which a paste is over; a person does not write two lines within it."""
PAUSE = 0.5
"""Seconds without a key after which a person is not typing."""
POLL = 0.05
"""Seconds between two polls of the keyboard."""
_LONGEST = 65_536


def forget() -> None:
    """Discard all input typed so far, including an unfinished line. Raises ``OSError`` if the terminal is
    gone."""
    if sys.platform == "win32":
        import msvcrt

        while msvcrt.kbhit():
            msvcrt.getwch()
        return
    import termios

    try:
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
    except termios.error as error:
        raise OSError(*error.args) from error


def settle(waiting: Waiting, keep: Callable[[bytes], None] | None = None) -> None:
    """Consume input until there is a pause, and pass it to ``keep`` or drop it. The rest of a paste, or of a
    line that a person is typing, would otherwise answer the question."""
    with _key_by_key():
        while waiting() and _arrives(PAUSE):
            if keep is None or sys.platform == "win32":
                forget()
            elif typed := os.read(sys.stdin.fileno(), _LONGEST):
                keep(typed)
            else:
                return  # end of input
    forget()


@contextmanager
def _key_by_key() -> Iterator[None]:
    """Deliver keys before Enter, without an echo on the screen."""
    if sys.platform == "win32":
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(terminal)
    except termios.error as error:
        raise OSError(*error.args) from error
    keys = [*before[:3], before[3] & ~(termios.ICANON | termios.ECHO), *before[4:6], [*before[6]]]
    keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0
    termios.tcsetattr(terminal, termios.TCSANOW, keys)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


def line(waiting: Waiting) -> str | None:
    """Return the text before Enter; ``None`` if no answer is needed any more, or at the end of input."""
    if sys.platform == "win32":  # its terminal cannot be polled
        text = sys.stdin.readline()
        return text.removesuffix("\n") if text else None
    read = b""
    while waiting():
        if not _arrives(POLL):
            continue
        if not (more := os.read(sys.stdin.fileno(), _LONGEST)):
            return None
        read += more
        if read.endswith(b"\n"):
            return read[:-1].decode("utf-8", "replace")
    return None


def follows() -> bool:
    """Return whether another line arrives at once."""
    return _arrives(QUIET)


def _arrives(seconds: float) -> bool:
    """Return whether a line, or the end of the input, arrives within this time."""
    if sys.platform == "win32":
        import msvcrt

        time.sleep(seconds)
        return msvcrt.kbhit()
    return bool(select.select([sys.stdin.fileno()], [], [], seconds)[0])


_MOST = 65_536
_LINE = re.compile(r"\x1b[\r\n]")
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
"""Escape sequences of keys such as arrows."""
_BACK, _WIPED = ("\x7f", "\b"), "\x15"


class Keys:
    """Assembles messages from keys. ``draft`` is the unfinished message."""

    def __init__(self) -> None:
        self.draft = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, data: bytes) -> list[str]:
        """Return the messages that these keys complete, oldest first. A backslash before Enter, and
        Alt-Enter, begin a new line."""
        messages = []
        for key in _SEQUENCES.sub("", _LINE.sub("\v", self._decoder.decode(data))):
            if key in "\r\n" and not self.draft.endswith("\\"):
                messages.append(self.draft)
                self.draft = ""
            elif key in "\r\n":
                self.draft = self.draft[:-1] + "\n"
            elif key in _BACK:
                self.draft = self.draft[:-1]
            elif key == _WIPED:
                self.draft = ""
            elif key == "\v" or key >= " ":
                self.draft += "\n" if key == "\v" else key
        return [message for message in messages if message.strip()]


class TypeAhead:
    """Listens at the terminal during a turn. ``shows`` receives what is typed so far."""

    def __init__(self, shows: Callable[[str], None]) -> None:
        self._shows, self._keys = shows, Keys()
        self._lock = threading.RLock()
        self._heard: Callable[[str], None] | None = None
        self._modes: list[Any] | None = None

    def keep(self, data: bytes) -> None:
        """Keep input typed at a question that does not answer it."""
        with self._lock:
            for message in self._keys.take(data):
                if self._heard is not None:
                    self._heard(message)

    def draft(self) -> str:
        """Return the unsent text, and clear it."""
        draft, self._keys.draft = self._keys.draft, ""
        return draft

    @contextmanager
    def listening(self, heard: Callable[[str], None]) -> Iterator[None]:
        """Listen, within the event loop of the turn; ``heard`` receives each message."""
        self._heard = heard
        self._key_by_key()
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            looking.cancel()
            with self._lock:
                self._take()
                self._heard = None
                self._as_before()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Free the terminal for a question, from any thread, after reading what was typed so far."""
        with self._lock:
            self._take()
            self._as_before()
            try:
                yield
            finally:
                if self._heard is not None:
                    self._key_by_key()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            if self._lock.acquire(blocking=False):  # else a question is being asked
                try:
                    self._take()
                finally:
                    self._lock.release()

    def _take(self) -> None:
        if self._heard is None:
            return
        before = self._keys.draft
        with suppress(OSError):  # the terminal is gone
            while select.select([sys.stdin.fileno()], [], [], 0)[0]:
                if not (data := os.read(sys.stdin.fileno(), _MOST)):
                    break
                for message in self._keys.take(data):
                    self._heard(message)
        if self._keys.draft != before:
            self._shows(self._keys.draft)

    def _key_by_key(self) -> None:
        import termios

        with suppress(termios.error):
            terminal = sys.stdin.fileno()
            self._modes = modes = termios.tcgetattr(terminal)
            keys = [*modes[:3], modes[3] & ~(termios.ICANON | termios.ECHO), *modes[4:6], [*modes[6]]]
            keys[6][termios.VMIN], keys[6][termios.VTIME] = 1, 0
            termios.tcsetattr(terminal, termios.TCSADRAIN, keys)

    def _as_before(self) -> None:
        import termios

        modes, self._modes = self._modes, None
        if modes is not None:
            with suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, modes)


Reader = Callable[[str], Awaitable[str | None]]
"""Returns the next message, or ``None`` at the end. Its argument is the beginning that was already typed."""
SIGN, CONTINUED = "› ", "· "
BELOW = {"bottom-toolbar": "noreverse", "bottom-toolbar.text": "noreverse ansibrightblack"}
"""Style of the line below the prompt."""
HISTORY = "chat_history"
"""Name of the input history's file in the home directory."""


def piped_reader(live: ProgressView) -> Reader:
    """Return a reader of standard input that echoes each line; a trailing backslash joins the next one."""

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


def terminal_reader(home: Path, toolbar: Callable[[], str], more: Callable[[], Commands] = dict) -> Reader:
    """Return a reader of messages from the terminal. Ctrl-C clears the line; another one on the empty line
    leaves. ``toolbar`` returns the line below; Tab completes ``more`` commands as well."""
    session = _session(home, toolbar, more)

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


def _session(home: Path, toolbar: Callable[[], str], more: Callable[[], Commands]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.styles import Style

    class ChatCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            for one in offers(document.text_before_cursor, home, more()):
                yield Completion(
                    one.text, -one.typed, display=one.shown or None, display_meta=one.meaning or None
                )

    return PromptSession(
        SIGN,
        history=input_history(home),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=CONTINUED,
        enable_open_in_editor=False,
        enable_suspend=True,
        completer=ChatCompleter(),
        complete_while_typing=False,
        reserve_space_for_menu=6,
        bottom_toolbar=lambda: [("class:bottom-toolbar.text", _fit_width(f"  {toolbar()}"))],
        style=Style.from_dict(BELOW),
    )


def _fit_width(line: str) -> str:
    """Shorten a line to the terminal's width with an ellipsis; the editor would cut it without one."""
    from prompt_toolkit.application import get_app

    text = Text(line)
    text.truncate(get_app().output.get_size().columns, overflow="ellipsis")
    return text.plain


def input_history(home: Path) -> History:
    """Return a history in the home directory; in memory if that cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        touch(private_folder(home) / HISTORY)
    except OSError:
        return InMemoryHistory()
    return FileHistory(home / HISTORY)


def _keys() -> KeyBindings:
    """Bind Enter to send unless the line ends with a backslash, and Alt-Enter to begin a new line."""
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


MOST = 100
"""Maximum files to offer."""
LOOKED_AT = 5_000
"""Maximum files to search below the folder for a name that is not in the folder itself."""
_MENTION = re.compile(r"(?<!\S)@(\"?)([^\s\"]*|(?<=\")[^\"\n]*)\Z")


class Offer(NamedTuple):
    """A completion: ``text`` replaces the last ``typed`` characters."""

    text: str
    typed: int
    shown: str = ""
    meaning: str = ""


def offers(text: str, home: Path, more: Commands = {}) -> Iterable[Offer]:  # noqa: B006 - it is only read
    """Return completions of the end of a message: commands and ``more`` of them, models, the sessions of
    ``home``, and files of the working directory."""
    if found := re.fullmatch(r"/(\S*)", text):
        return _commands(found[1], {**CHAT, **more})
    if found := re.fullmatch(r"/(model|sessions|image|file)[ \t]+(\S*)", text):
        return _arguments(found[1], found[2], home)
    mention = _MENTION.search(text)
    return _offer_paths(mention[2], len(mention[0])) if mention else ()


def _arguments(command: str, begun: str, home: Path) -> Iterator[Offer]:
    if command == "model":
        return (Offer(name, len(begun)) for name in matching_models(str(home), begun))
    if command == "sessions":
        return (Offer(id, len(begun), id, title) for id, title in matching_sessions(str(home), begun))
    return (Offer(path, len(begun)) for path in files(begun))


def _commands(begun: str, commands: Commands) -> Iterator[Offer]:
    for name, (words, does) in commands.items():
        if name.startswith(begun):
            yield Offer(f"/{name}", len(begun) + 1, f"/{name} {words}", does)


def _offer_paths(begun: str, typed: int) -> Iterator[Offer]:
    for path in files(begun):
        yield Offer(f'@"{path}"' if re.search(r"\s", path) else f"@{path}", typed, path)


def files(begun: str) -> Iterator[str]:
    """Yield the paths that begin with ``begun``, folders with a trailing slash; without any, files below here
    whose names contain it. Hidden ones only if ``begun`` has the dot."""
    folder, name = os.path.split(begun)
    found = False
    for path in _entries(Path(folder or "."), name):
        found = True
        yield os.path.join(folder, path)
    if not found and len(name) > 1 and not folder:
        yield from _below(name.lower())


def _entries(folder: Path, begun: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            named = [one.name + "/" * one.is_dir() for one in entries if one.name.startswith(begun)]
    except OSError:
        return []
    return [one for one in sorted(named) if _is_offered(one, begun)][:MOST]


def _below(words: str) -> Iterator[str]:
    looked_at = shown = 0
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(one for one in folders if _is_offered(one, ""))
        for name in sorted(names):
            looked_at += 1
            if words in name.lower() and _is_offered(name, ""):
                shown += 1
                yield os.path.relpath(os.path.join(folder, name))
        if looked_at > LOOKED_AT or shown > MOST:
            return


def _is_offered(name: str, begun: str) -> bool:
    """Return whether to offer a name: none that is hidden, or would change a terminal."""
    return clean(name) == name and (not name.startswith(".") or begun.startswith("."))
