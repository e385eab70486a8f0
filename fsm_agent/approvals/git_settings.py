"""What Git would run because a repository says so: monitors, hooks, filters, drivers, external diffs.

``git status`` runs whatever ``core.fsmonitor`` of ``.git/config`` names, and four plain files are a
repository. So before Git reads one unasked, its settings are read by commands of Git that run nothing. Of
those that a repository brings itself only the ones that are listed here count as harmless: a key that a later
Git invents is asked about. Of a person's own settings only those matter that name what a reading command
runs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from fsm_agent.providers.keyless_environment import keyless_environment
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line

SECONDS = 5.0
"""Within which Git has to say what a repository's settings are."""
MOST = 50
"""Repositories in one another that are looked at."""
HARMLESS = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf"
    r"|eol|safecrlf|quotepath|abbrev|protectntfs|protecthfs|untrackedcache|trustctime|checkstat|preloadindex"
    r"|compression|longpaths|sharedrepository|commentchar|whitespace|splitindex|multipackindex|commitgraph"
    r"|sparsecheckout|sparsecheckoutcone|worktree|hookspath|fsmonitor)"
    r"|extensions\.(objectformat|worktreeconfig|refstorage|relativeworktrees)"
    r"|remote\..+\.(url|pushurl|fetch|push|tagopt|prune|prunetags|gh-resolved|skipdefaultupdate|skipfetchall"
    r"|followremotehead)|remote\.pushdefault|branch\..+\.[a-z-]+|branch\.(autosetupmerge|autosetuprebase|sort)"
    r"|submodule\.(.+\.)?(url|active|branch|ignore|path|fetchrecursesubmodules)"
    r"|user\.(name|email|signingkey|useconfigonly)|(author|committer)\.(name|email)"
    r"|(pull|push|fetch|rebase|color|index|advice|rerere|feature|maintenance)\.[a-z]+|color\.[a-z]+\.[a-z]+"
    r"|init\.defaultbranch|gc\.(auto|autodetach|pruneexpire|reflogexpire|writecommitgraph)"
    r"|merge\.(ff|conflictstyle|log|renames|autostash)|(commit|tag)\.gpgsign"
    r"|log\.(date|decorate|abbrevcommit|follow)|status\.(short|branch|showuntrackedfiles|relativepaths)"
    r"|diff\.(algorithm|renames|renamelimit|colormoved|mnemonicprefix|noprefix|context)"
    r"|lfs\.repositoryformatversion|lfs\..+\.(access|locksverify)",
    re.DOTALL,
)
"""Keys of a repository's own settings that name no program."""
RUNS = re.compile(
    r"core\.fsmonitor|diff\.external|diff\..+\.(command|textconv)|filter\..+\.(clean|smudge|process)"
    r"|hook\..+\.command|remote\..+\.promisor",
    re.DOTALL,
)
"""Keys of a person's settings that name what a command which reads would run."""
_SWITCH = re.compile(r"true|yes|on|1|false|no|off|0|", re.IGNORECASE)
"""Values of ``core.fsmonitor`` with which Git runs no program but itself."""
_HOOK = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+|update")
_NOT_BY_READERS = frozenset((
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "commit-msg",
    "update", "prepare-commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push",
    "pre-receive",
    "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc",
    "post-rewrite", "sendemail-validate",
))  # fmt: skip
"""Hooks that no command which only reads runs; ``post-index-change`` is one that ``git status`` does."""
_SHOWS_SETTINGS = frozenset(("config", "remote"))


class _Unreadable(Exception):
    """Git cannot say what is in the repository."""


@dataclass(frozen=True, slots=True)
class _Places:
    top: str
    own: str
    common: str
    hooks: str


def runs_by_git(program: str, command: str, workdir: str) -> str:
    """Why ``git command`` in ``workdir`` needs a yes, as one sentence; an empty text when it runs nothing but
    Git. ``program``: the path of Git."""
    waiting, seen, common = [os.path.realpath(workdir)], set[str](), list[str]()
    while waiting:
        folder = waiting.pop()
        if len(seen) > MOST:
            return f"{folder} is one of more than {MOST} repositories in one another"
        try:
            places = _places(program, folder)
            if places.top in seen:
                continue
            seen.add(places.top)
            reason = (
                _elsewhere(places, folder, common)
                or _named_in(_run(program, folder, "config", "--list", "--show-scope", "--null"), command)
                or _hooked(places.hooks)
            )
            if reason:
                return f"{reason} (repository {places.top})"
            common.append(places.common)
            waiting += _submodules(program, places.top)
        except _Unreadable as error:
            return f"Git cannot say what the repository at {folder} is: {error}"
    return ""


def _run(program: str, folder: str, *words: str) -> list[str]:
    """What a command of Git that runs no other program prints, in its parts."""
    try:
        ended = subprocess.run(  # noqa: S603  # the program that PATH names, with words of ours
            [program, "-c", "core.fsmonitor=false", *words],
            cwd=folder, env={**keyless_environment(), "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _Unreadable(f"no answer within {SECONDS:g} s") from None
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from None
    if ended.returncode:
        said = one_line(os.fsdecode(ended.stderr), 200)
        raise _Unreadable(said or f"exit code {ended.returncode}")
    return os.fsdecode(ended.stdout).split("\0")


def _places(program: str, folder: str) -> _Places:
    printed = _run(
        program, folder, "rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir",
        "--git-common-dir", "--git-path", "hooks",
    )[0]  # fmt: skip
    lines = printed.splitlines()
    if len(lines) != 4:
        raise _Unreadable("a path with a line break in it")
    return _Places(*(os.path.realpath(line) for line in lines))


def _elsewhere(places: _Places, folder: str, known: list[str]) -> str:
    """Are the files, or what is stored of them, those of another folder?"""
    if os.path.commonpath((places.top, folder)) != places.top or not _is_of(places):
        return f"core.worktree or a variable lets Git read {places.top} by {places.own}"
    homes = (places.top, *known)
    if any(os.path.commonpath((home, places.common)) == home for home in homes):
        return ""
    try:  # a worktree of another repository, which names it in turn
        with open(os.path.join(places.own, "gitdir"), encoding="utf-8") as file:
            if os.path.realpath(file.read().strip()) == os.path.join(places.top, ".git"):
                return ""
    except (OSError, ValueError):
        pass
    return f"it belongs to a repository elsewhere, {places.common}"


def _is_of(places: _Places) -> bool:
    """Is the repository the one that ``.git`` at the top stands for?"""
    dot_git = os.path.join(places.top, ".git")
    if os.path.realpath(dot_git) == places.own:
        return True
    try:
        with open(dot_git, encoding="utf-8") as file:
            named = file.read(10_000).removeprefix("gitdir:").strip()
    except (OSError, ValueError):
        return False
    return os.path.realpath(os.path.join(places.top, named)) == places.own


def _named_in(listed: list[str], command: str) -> str:
    """The first setting that matters. ``listed``: scopes and settings in turn."""
    for scope, setting in zip(listed[::2], listed[1::2], strict=False):
        key, _, value = setting.partition("\n")
        own = scope not in ("system", "global", "command")
        if key == "core.fsmonitor" and _SWITCH.fullmatch(value):
            continue
        if command in _SHOWS_SETTINGS and mask(setting.replace("\n", "=")) != setting.replace("\n", "="):
            return f"the setting {key} holds a key"
        if own and (key == "core.fsmonitor" or not HARMLESS.fullmatch(key)):
            return f"the setting {key} may name a program that Git runs"
        if not own and RUNS.fullmatch(key) and not value.startswith("git-lfs "):
            return f"your setting {key} names a program that runs on files of this folder"
    return ""


def _hooked(hooks: str) -> str:
    try:
        with os.scandir(hooks) as entries:
            found = sorted(
                one.name for one in entries if _HOOK.fullmatch(one.name) and one.name not in _NOT_BY_READERS
            )
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise _Unreadable(f"{hooks}: {error.strerror or error}") from None
    return f"the hook {found[0]} is there" if found else ""


def _submodules(program: str, top: str) -> Iterator[str]:
    """The repositories in this one that Git enters by itself."""
    for row in _run(program, top, "ls-files", "--stage", "-z"):
        if row.startswith("160000 "):
            path = os.path.join(top, row.partition("\t")[2])
            if os.path.lexists(os.path.join(path, ".git")):
                yield path
