"""What Tab offers in the chat: commands, models, sessions, and files of the working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from fsm_agent.cli.commands import CHAT
from fsm_agent.cli.completions import models, sessions_of
from fsm_agent.cli.screen import clean

MOST = 100
"""Files that are offered."""
LOOKED_AT = 5_000
"""Files among which a name is looked for that does not stand in the folder itself."""
_MENTION = re.compile(r"(?<!\S)@(\"?)([^\s\"]*|(?<=\")[^\"\n]*)\Z")


class ChatCompleter(Completer):
    """``home`` has the sessions."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Offer what may stand before the cursor."""
        text = document.text_before_cursor
        if found := re.fullmatch(r"/([a-z]*)", text):
            return _commands(found[1])
        if found := re.fullmatch(r"/(model|sessions|image|file)[ \t]+(\S*)", text):
            return self._arguments(found[1], found[2])
        mention = _MENTION.search(text)
        return _mentioned(mention[2], len(mention[0])) if mention else ()

    def _arguments(self, command: str, begun: str) -> Iterator[Completion]:
        if command == "model":
            return (Completion(name, -len(begun)) for name in models(begun))
        if command == "sessions":
            found = sessions_of(str(self._home), begun)
            return (Completion(id, -len(begun), display_meta=title) for id, title in found)
        return (Completion(path, -len(begun)) for path in files(begun))


def _commands(begun: str) -> Iterator[Completion]:
    for name, (words, does) in CHAT.items():
        if name.startswith(begun):
            yield Completion(f"/{name}", -len(begun) - 1, display=f"/{name} {words}", display_meta=does)


def _mentioned(begun: str, typed: int) -> Iterator[Completion]:
    for path in files(begun):
        yield Completion(f'@"{path}"' if re.search(r"\s", path) else f"@{path}", -typed, display=path)


def files(begun: str) -> Iterator[str]:
    """Yield the paths that begin so, folders with a slash behind; where there is none, files below here that
    have it in their name. Hidden ones only when they are asked for."""
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
    return [one for one in sorted(named) if _shown(one, begun)][:MOST]


def _below(words: str) -> Iterator[str]:
    looked_at = shown = 0
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(one for one in folders if _shown(one, ""))
        for name in sorted(names):
            looked_at += 1
            if words in name.lower() and _shown(name, ""):
                shown += 1
                yield os.path.relpath(os.path.join(folder, name))
        if looked_at > LOOKED_AT or shown > MOST:
            return


def _shown(name: str, begun: str) -> bool:
    """Not what is hidden, and nothing whose name would change a terminal."""
    return clean(name) == name and (not name.startswith(".") or begun.startswith("."))
