"""What a simple command would destroy: the system, the home directory, a disk. Pure, by the command's words
alone."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

_GLOBS = re.compile(r"(?:/[.\[\]!^,{}]*[*?][*?.\[\]!^,{}]*)+/*$")
_DISK = re.compile(r"/dev/(?:r?disk|sd|hd|vd|xvd|nvme|mmcblk|md|dm-|loop|mapper/)\w*")
_SYSTEM = frozenset(
    (
        *(
            "/",
            "/bin",
            "/boot",
            "/dev",
            "/etc",
            "/home",
            "/lib",
            "/lib64",
            "/opt",
            "/proc",
            "/root",
            "/sbin",
            "/sys",
        ),
        *("/usr", "/var", "/Users", "/System", "/Library", "/Applications"),
    )
)
_FILES = frozenset(("/etc/passwd", "/etc/shadow", "/etc/sudoers", "/etc/fstab"))
_HOME = frozenset(("~", "$HOME", "${HOME}"))
_STOPPING = frozenset(("shutdown", "reboot", "halt", "poweroff"))
_FORMATTING = frozenset(("wipefs", "mkswap", "blkdiscard"))
_FIND_ACTIONS = frozenset(
    ("-delete", "-exec", "-execdir", "-depth", "-xdev", "-mount", "-rf", "-r", "-f", "-fr")
)

_DELETES = "it would delete the system or the home directory"
_OPENS = "it would change the permissions of the whole system"
_WRITES = "writing to a disk device destroys what is on it"
_STOPS = "it would stop the machine"
_NEEDED = "it would overwrite a file that the system cannot do without"


@dataclass(frozen=True, slots=True)
class PathPlace:
    """Where a command runs: ``home`` is the user's, ``directory`` the working directory or empty when it is
    not known; ``vital`` when it is known to be one that must not be emptied."""

    home: str = ""
    directory: str = ""
    vital: bool = False

    def entered(self, operands: Sequence[str]) -> PathPlace:
        """After ``cd``."""
        if not operands:
            return replace(self, vital=True, directory=self.home)
        vital = any(self.is_vital(word) for word in operands)
        target = operands[0]
        if target.startswith("/"):
            return replace(self, vital=vital, directory=target)
        known = bool(self.directory) and not target.startswith(("$", "~", "-"))
        return replace(self, vital=vital, directory=posixpath.join(self.directory, target) if known else "")

    def is_vital(self, word: str) -> bool:
        """Is this path, or all that is in it, something a machine or a person cannot do without?"""
        if self.directory and (here := re.match(r"\$(?:PWD|\{PWD\})(?=/|$)", word)) is not None:
            word = self.directory + word[here.end() :]
        if re.fullmatch(r"~[\w.-]+/*", word):
            return True  # somebody's home directory
        if not word.startswith(("/", "~", "$")):
            if ".." not in word.split("/") or not self.directory:
                return False
            word = posixpath.join(self.directory, word)
        path = _GLOBS.sub("/", word)
        path = (
            "/" + posixpath.normpath(path).lstrip("/") if path.startswith("/") else posixpath.normpath(path)
        )
        if path in _SYSTEM or path in _HOME or (bool(self.home) and path == posixpath.normpath(self.home)):
            return True
        return (
            path.count("/") == 1
            and any(sign in path for sign in "*?[")
            and any(fnmatchcase(one, path) for one in _SYSTEM - {"/"})
        )

    def hits(self, rest: Sequence[str]) -> bool:
        """Is something vital among the operands?"""
        return "--no-preserve-root" in rest or any(
            self.is_vital(word) or (self.vital and word.removeprefix("./") in ("*", ".", "")) for word in rest
        )


def destroys(name: str, rest: Sequence[str], place: PathPlace) -> str | None:
    """What the command ``name`` with these words would destroy; ``None`` for nothing that cannot be made
    good."""
    if name in _STOPPING:
        return _STOPS
    if name == "mkfs" or name.startswith("mkfs.") or name in _FORMATTING:
        return "making a file system destroys what is on the disk"
    check, reason = _CHECKS.get(name, (None, ""))
    return reason if check is not None and check(rest, place) else None


def matching_name(name: str) -> str:
    """The dangerous command that a name with ``*``, ``?`` or ``[…]`` would find; every other name as it
    is."""
    if not any(sign in name for sign in "*?["):
        return name
    return next((known for known in (*_CHECKS, *_STOPPING, *_FORMATTING) if fnmatchcase(known, name)), name)


def is_disk(word: str) -> bool:
    """Say whether a word of a command names a whole disk or partition."""
    return _DISK.match(word) is not None


def is_switch(word: str, letters: str, long: str) -> bool:
    """Is the word a short option with one of these letters, or this long one, which may be shortened?"""
    if word.startswith("--"):
        return len(word) > 3 and f"--{long}".startswith(word)
    return word[:1] == "-" and any(letter in word for letter in letters)


def _has_switch(words: Sequence[str], letters: str, long: str) -> bool:
    return any(is_switch(word, letters, long) for word in words)


def _opens_all(rest: Sequence[str]) -> bool:
    return any(
        re.fullmatch(r"[0-7]?777|0*|[augo]*[+=]rwx|[augo]*[-=](?:rwx)?", word)
        for word in rest
        if word and word != "-R"
    )


def _deletes_all(rest: Sequence[str]) -> bool:
    rest = _without_idle_tests(rest)
    deletes = "-delete" in rest or any(
        word in ("rm", "shred", "unlink") for word in map(posixpath.basename, rest)
    )
    return deletes and all(word in _FIND_ACTIONS for word in rest if word.startswith("-"))


def _without_idle_tests(rest: Sequence[str]) -> list[str]:
    """The words of ``find`` without tests that nearly everything passes."""
    kept, words = [], iter(rest)
    for word in words:
        if word in ("-type", "-mindepth", "-maxdepth"):
            next(words, None)
        elif word in ("-name", "-iname", "-path", "-regex", "-wholename"):
            if (pattern := next(words, "")).strip("*?.") != "":
                kept += [word, pattern]
        else:
            kept.append(word)
    return kept


def _overwrites(rest: Sequence[str], _: PathPlace) -> bool:
    return bool(rest) and rest[-1] in _FILES


def _kills_all(rest: Sequence[str], _: PathPlace) -> bool:
    return any(word in ("-u", "-U", "--euid", "--uid") for word in rest) and "root" in rest


def _names_a_disk(rest: Sequence[str], _: PathPlace) -> bool:
    return any(is_disk(word) for word in rest)


_CHECKS: dict[str, tuple[Callable[[Sequence[str], PathPlace], bool], str]] = {
    "rm": (lambda rest, place: _has_switch(rest, "rR", "recursive") and place.hits(rest), _DELETES),
    "find": (lambda rest, place: place.hits(rest) and _deletes_all(rest), _DELETES),
    "rsync": (
        lambda rest, place: any(word.startswith("--del") for word in rest) and place.hits(rest[-1:]),
        _DELETES,
    ),
    "mv": (lambda rest, place: any(place.is_vital(word) for word in rest[:-1]), _DELETES),
    "chmod": (
        lambda rest, place: _has_switch(rest, "R", "recursive") and place.hits(rest) and _opens_all(rest),
        _OPENS,
    ),
    "chown": (lambda rest, place: _has_switch(rest, "R", "recursive") and place.hits(rest), _OPENS),
    "dd": (lambda rest, _: any(word.startswith("of=") and is_disk(word[3:]) for word in rest), _WRITES),
    "tee": (_names_a_disk, _WRITES),
    "cp": (lambda rest, place: (bool(rest) and is_disk(rest[-1])) or _overwrites(rest, place), _WRITES),
    "truncate": (_overwrites, _NEEDED),
    "ln": (_overwrites, _NEEDED),
    "install": (_overwrites, _NEEDED),
    "tar": (lambda rest, place: "--remove-files" in rest and place.hits(rest), _DELETES),
    "pkill": (_kills_all, "it would kill the processes of the system"),
    "killall": (_kills_all, "it would kill the processes of the system"),
    "shred": (_names_a_disk, _WRITES),
    "kill": (lambda rest, _: "-1" in rest[1:], "it would kill every process"),
    "killall5": (lambda *_: True, "it would kill every process"),
    "init": (lambda rest, _: rest[:1] in (["0"], ["6"]), _STOPS),
    "telinit": (lambda rest, _: rest[:1] in (["0"], ["6"]), _STOPS),
    "systemctl": (lambda rest, _: any(word in _STOPPING for word in rest), _STOPS),
}
