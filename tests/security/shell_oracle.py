"""What a line of shell really does, seen from outside: a throw-away directory in which every program that it
runs writes down its words. Nothing else can be reached where bubblewrap works; elsewhere only programs that
record, and a few that read, are found."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsm_agent.approvals.programs import Command, Word, names

ACTS = names("rm dd curl mv cp touch chmod python3 perl ssh evil")
"""Programs that only write down how they were started. That they run is what a person has to be asked for."""
REAL = names(
    "ls cat head wc grep sort uniq tr cut find sed awk env timeout nohup nice xargs tee git bash sh base64 rev"
)
"""Programs that write it down and then do what they do."""
RECORDER = '#!{bash}\n{{ printf "%s\\0" {name} "$@"; printf "\\n\\0"; }} >> "$RECORD/$$"\n{then}\n'


@dataclass(frozen=True, slots=True)
class Happened:
    """``ran``: the words of every program. ``changed``: names of files that are new, gone or
    different."""

    ran: list[list[str]]
    changed: frozenset[str]

    @property
    def acted(self) -> bool:
        """Did anything happen that a person has to be asked for?"""
        return bool(self.changed) or any(words[0] in ACTS for words in self.ran)


class Sandbox:
    """One directory with programs that record; ``happens`` runs a line in a fresh copy of its files."""

    def __init__(self, root: Path) -> None:
        self.root, self.work, self.bin = root.resolve(), root.resolve() / "work", root.resolve() / "bin"
        self.bin.mkdir()
        self.bash = shutil.which("bash") or "bash"
        self.environ = {
            "PATH": str(self.bin), "HOME": str(self.root / "home"), "LC_ALL": "C.UTF-8", "RECORD": str(self.root / "log"),
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat",
        }  # fmt: skip
        for name in sorted(ACTS | REAL):
            real = shutil.which(name)
            if name in REAL and real is None:
                continue
            self._program(self.bin / name, f'exec {real} "$@"' if name in REAL else "exit 0")

    def _program(self, path: Path, then: str, says: str = "") -> None:
        path.write_text(RECORDER.format(bash=self.bash, name=says or path.name, then=then))
        path.chmod(0o755)

    def _fresh(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.root / "home", ignore_errors=True)
        (self.work / "evil").mkdir(parents=True)
        (self.root / "home").mkdir()
        for name, text in {"a.txt": "one\ntwo\n", "b.txt": "x\n", "precious": "mine\n"}.items():
            (self.work / name).write_text(text)
        for name in ("ls", "cat", "git"):
            self._program(self.work / "evil" / name, "exit 0", says="evil")
        shutil.rmtree(self.root / "log", ignore_errors=True)
        (self.root / "log").mkdir()  # a file for each process, so that none writes into another's line

    def happens(self, line: str) -> Happened:
        """Run a line, and say what happened."""
        self._fresh()
        before = self._files()
        words = [self.bash, "-c", line]
        with contextlib.suppress(subprocess.TimeoutExpired):  # some wait for what never comes
            subprocess.run(
                [*_walls(self.root, self.bin), *words], cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3, check=False,
            )  # fmt: skip
        after = self._files()
        logs = b"".join(one.read_bytes() for one in sorted((self.root / "log").iterdir()))
        log = logs.decode("utf-8", "surrogateescape")
        ran = [one.split("\0")[:-1] for one in log.split("\n\0")[:-1]]
        changed = frozenset(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        return Happened([words for words in ran if words], changed)

    def _files(self) -> dict[str, bytes]:
        places = (self.work, self.root / "home")
        return {
            str(one): one.read_bytes()
            for place in places
            for one in sorted(place.rglob("*"))
            if one.is_file()
        }


def _walls(root: Path, programs: Path) -> list[str]:
    """Words before a command that leave it only ``root`` to write to; none where bubblewrap does not work."""
    if not _bubblewrap():
        return []
    keeps = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(root), str(root)]
    return [
        "/usr/bin/bwrap",
        "--unshare-all",
        "--die-with-parent",
        *keeps,
        "--ro-bind",
        str(programs),
        str(programs),
    ]


@functools.cache
def _bubblewrap() -> bool:
    words = ["/usr/bin/bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"]
    return (
        os.path.exists(words[0]) and subprocess.run(words, check=False, capture_output=True).returncode == 0
    )


def is_read(ran: Sequence[str], commands: Sequence[Command]) -> bool:
    """Are these words of a program that ran those of one that was read?"""
    return (
        ran[0] == "evil"
        or any(  # a program of the folder, under whatever name
            os.path.basename(one.words[at].text) == ran[0] and _fit(list(ran[1:]), list(one.words[at + 1 :]))
            for one in commands
            for at in one.starts
        )
    )


def did_run(command: Command, ran: Sequence[Sequence[str]]) -> bool:
    """Did this program run with its words? Those of the shell itself leave no trace."""
    name = command.words[command.starts[-1]].text  # a name with a folder does not record
    inner = replace(command, starts=command.starts[-1:])
    return name not in ACTS | REAL or any(is_read(words, [inner]) for words in ran)


def _fit(ran: list[str], words: list[Word]) -> bool:
    if not words:
        return not ran
    first, *rest = words
    if first.kind == "exact":
        return bool(ran) and ran[0] == first.text and _fit(ran[1:], rest)
    counts = range(0 if first.kind == "open" else 1, len(ran) + 1)
    return any(
        (first.kind == "open" or all(_names(one, first.text) for one in ran[:count]))
        and _fit(ran[count:], rest)
        for count in counts
    )


def _names(file: str, pattern: str) -> bool:
    return (
        file == pattern or pattern.startswith("~") or re.match(fnmatch.translate(pattern), file) is not None
    )
