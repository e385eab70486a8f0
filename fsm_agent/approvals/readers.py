"""Why a command that only reads may still need approval: the folder can change what it runs, or it would
show secrets.

A program counts as a reader by its name and words (``programs.txt``). The folder can turn it into something
else: by a file of its name that is found first, by a version manager that lets a file choose the program,
by variables that name files of the folder, or by a repository's settings. All this is checked when approval
is requested. That is sound because a line of readers writes nothing and runs alone: any change to the
folder in between was itself approved, or confined by a sandbox."""

from __future__ import annotations

import glob
import itertools
import os
import re
import string
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsm_agent.approvals.acting_files import ACTING_FILES, ActingFiles, LastNames, as_names, plain_name
from fsm_agent.approvals.programs import Command, Word, names
from fsm_agent.providers.credentials import keyless_environment
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import one_line

# What Git would run because a repository says so: monitors, hooks, filters, drivers, external diffs.
#
# ``git status`` runs whatever ``core.fsmonitor`` in ``.git/config`` names, and four plain files make a
# repository. So before Git reads one without approval, commands of Git that run nothing list its settings.
# Of a repository's own settings only the keys listed here are harmless, so a key that a later Git adds
# needs approval. Of the user's settings only those matter that name a program run by reading commands.


SECONDS = 5.0
"""Time limit for Git to list a repository's settings."""
MOST = 50
"""Maximum nested repositories to check."""
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
"""Keys of the user's settings that name a program run by commands that only read."""
_SWITCH = re.compile(r"true|yes|on|1|false|no|off|0|", re.IGNORECASE)
"""Values of ``core.fsmonitor`` with which Git runs only itself."""
_HOOK = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+|update")
_NOT_BY_READERS = frozenset((
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "commit-msg",
    "update", "prepare-commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push",
    "pre-receive",
    "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc",
    "post-rewrite", "sendemail-validate",
))  # fmt: skip
"""Hooks that commands which only read never run; ``git status`` does run ``post-index-change``."""
_SHOWS_SETTINGS = frozenset(("config", "remote"))


class _Unreadable(Exception):
    """Git cannot describe the repository."""


@dataclass(frozen=True, slots=True)
class _Places:
    top: str
    own: str
    common: str
    hooks: str


def runs_by_git(program: str, command: str, workdir: str) -> str:
    """Return why ``git command`` in ``workdir`` needs approval, as one sentence; empty when Git runs only
    itself. ``program``: the path of Git."""
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
                or _setting_in(_run(program, folder, "config", "--list", "--show-scope", "--null"), command)
                or _why_hooks(places.hooks)
            )
            if reason:
                return f"{reason} (repository {places.top})"
            common.append(places.common)
            waiting += _submodules(program, places.top)
        except _Unreadable as error:
            return f"Git cannot say what the repository at {folder} is: {error}"
    return ""


def _run(program: str, folder: str, *words: str) -> list[str]:
    """Return the fields printed by a Git command that runs no other program."""
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
        problem = one_line(os.fsdecode(ended.stderr), 200)
        raise _Unreadable(problem or f"exit code {ended.returncode}")
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
    """Return whether the files or their objects belong to another folder."""
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
    """Return whether ``.git`` at the top leads to this repository."""
    dot_git = os.path.join(places.top, ".git")
    if os.path.realpath(dot_git) == places.own:
        return True
    try:
        with open(dot_git, encoding="utf-8") as file:
            named = file.read(10_000).removeprefix("gitdir:").strip()
    except (OSError, ValueError):
        return False
    return os.path.realpath(os.path.join(places.top, named)) == places.own


def _setting_in(listed: list[str], command: str) -> str:
    """Return the first setting that matters. ``listed``: scopes and settings in turn."""
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


def _why_hooks(hooks: str) -> str:
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
    """Yield the submodules that Git enters by itself."""
    for row in _run(program, top, "ls-files", "--stage", "-z"):
        if row.startswith("160000 "):
            path = os.path.join(top, row.partition("\t")[2])
            if os.path.lexists(os.path.join(path, ".git")):
                yield path


# Files that hold keys of other services: what a command reads from them goes to the model's provider.


KEY_FILES = ActingFiles("holds keys", (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".git-credentials", ".htpasswd",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "*.ppk",
    "credentials", "credentials.*", "credentials*.json", "secrets.*", "service-account*.json", ".vault-token",
    ".ssh/**", ".aws/**", ".azure/**", ".kube/**", ".gnupg/**", ".docker/config.json", ".config/gcloud/**",
    ".config/gh/**", ".config/containers/**", ".my.cnf", ".pgpass", ".s3cfg", ".boto", "*.tfstate",
    "*.tfvars",
    ".terraform.d/**", ".git/credentials", "mcp-logins/**",
))  # fmt: skip
"""Files that hold keys, by name alone."""
MAY_HOLD = ActingFiles("holds a key", (
    ".npmrc", ".yarnrc*", "bunfig.toml", "pip.conf", "pip.ini", "uv.toml", ".condarc", ".gemrc", ".cargo/**",
    ".m2/**", ".gradle/**", "gradle.properties", "nuget.config", ".composer/**", ".terraformrc", ".wgetrc",
    ".curlrc",
    ".git/config", ".git/config.worktree", ".git/modules/**/config", "*.pem", "*.key", ".dockercfg",
))  # fmt: skip
"""Files that usually hold something else: their contents decide."""
_SAMPLES = re.compile(r".*\.(example|sample|template|dist|tmpl|md|pub)", re.DOTALL)
_PRIVATE = re.compile(r"PRIVATE KEY-----|_auth|extraheader|credential", re.IGNORECASE)
LOOKED_AT = 64_000
"""Characters to search for a key."""
MOST_ENTRIES = 50_000
"""Maximum folder entries to check for one command."""


_BY_NAME = (KEY_FILES, *(row for row in ACTING_FILES if row.reason.startswith("holds keys")))
_LAST = LastNames((*_BY_NAME, MAY_HOLD))


def _kind(path: str) -> str:
    plain = as_names(path)
    if _SAMPLES.fullmatch(plain):
        return ""
    if any(row.has(plain) for row in _BY_NAME):
        return "key"
    return "perhaps" if MAY_HOLD.has(plain) else ""


def holds_keys(path: str, root: str) -> str:
    """Return why reading this file, relative to ``root``, needs approval; empty when it does not. Both the
    given name and the real one count."""
    whole = os.path.normpath(os.path.join(root, path))
    for one in dict.fromkeys((whole, os.path.realpath(whole))):
        near = os.path.relpath(one, root)
        kind = _kind(near if near[:2] != ".." else one)
        if kind == "key" or (kind == "perhaps" and _has_a_key(one)):
            return f"{path} holds keys"
    return ""


def matching_paths(pattern: str, root: str) -> Iterator[str]:
    """Return the paths that match a word with wildcards."""
    found = glob.iglob(pattern, root_dir=root, include_hidden=False)
    yield from itertools.islice(found, MOST_ENTRIES)


def below(folder: str, root: str) -> str:
    """Return why searching all files of a folder needs approval; empty when it does not."""
    start, seen = os.path.join(root, folder), 0
    for place, folders, files in os.walk(start):
        seen += len(folders) + len(files)
        if seen > MOST_ENTRIES:
            return f"{folder} has more than {MOST_ENTRIES:,} files, any of which may hold keys"
        near = os.path.relpath(place, root)
        whole = _kind(f"{near}/x") != ""  # every file of such a folder counts
        for name in files:
            if (whole or plain_name(name) in _LAST) and (reason := holds_keys(f"{near}/{name}", root)):
                return reason
    return ""


def _has_a_key(path: str) -> bool:
    """A missing or special file has no key; an unreadable one is assumed to have one."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LOOKED_AT)
    except OSError:
        return True
    return _PRIVATE.search(text) is not None or mask(text) != text


BUILTINS = names("echo printf test [ true false : pwd type command cd")
"""Builtins of bash, which it does not look up as files."""
_SHIMS = "shims"
"""Folder of a version manager's shims, which read in the working directory what to run."""
_SWITCHERS = names(
    "asdf mise rtx rustup volta volta-shim proto proto-shim corepack hermit aqua aqua-proxy pyenv rbenv"
)
_LISTS = names("LD_LIBRARY_PATH DYLD_LIBRARY_PATH PYTHONPATH PERL5LIB PERLLIB RUBYLIB NODE_PATH CLASSPATH")
"""Variables that list folders; an empty entry is the working directory."""
_FILES = names(
    "LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES BASH_ENV PYTHONHOME PYTHONSTARTUP PERL5OPT"
    " RUBYOPT NODE_OPTIONS TAR_OPTIONS JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS RIPGREP_CONFIG_PATH"
    " GCC_EXEC_PREFIX MAGIC COMPILER_PATH"
)
"""Variables that name files a program runs or obeys."""
_SCRIPTED = names("awk gawk mawk sed jq")
"""Programs whose first operand is a script, not a file."""
_OPENS_NOTHING = names("echo printf true false :")
_SHOWS_NO_CONTENTS = _OPENS_NOTHING | names(
    "ls stat du df find test [ basename dirname readlink realpath tree file wc which type pwd"
)
_RECURSES = {
    **dict.fromkeys(("grep", "egrep", "fgrep"), re.compile(r"-[A-Za-z]*[rRd].*|--(rec|der|dir).*")),
    "rg": re.compile(r""),
    "diff": re.compile(r"-[A-Za-z]*r.*|--rec.*"),
}
"""Options that make a program read all files of a folder; an empty expression if it always does."""


class ReaderFolder:
    """The folder that the readers of one line run in. ``environ``: the variables that they see."""

    def __init__(self, workdir: str, environ: Mapping[str, str] = os.environ) -> None:
        self.workdir, self._environ = os.path.realpath(workdir), environ
        self._asked: dict[str, str] = {}

    def why_ask(self, command: Command) -> str:
        """Say in one sentence why a command that seems to only read needs approval; empty when it needs
        none."""
        last = command.starts[-1]
        name, *rest = command.texts(last)
        programs = (command.words[start].text for start in command.starts)
        sub = next((word for word in rest if word[:1] != "-"), "")
        return (
            self._why_variables()
            or next((reason for one in programs if (reason := self._find_obstacle(one))), "")
            or (self._by_git(sub) if name == "git" and rest != ["--version"] else "")
            or ("" if name in _SHOWS_NO_CONTENTS else self._shows(name, command.words[last + 1 :]))
        )

    def _shows(self, name: str, words: Sequence[Word]) -> str:
        named = next((reason for word in words if (reason := self.why_not_shown(word))), "")
        return named or self._why_search(name, [word.text for word in words])

    def why_not_shown(self, word: Word) -> str:
        """Return why showing a file that the word may name needs approval; empty when it does not."""
        for value in {*values_in(word.text), *word.text.split(":")} - {"", "/dev/null"}:
            wild = word.kind != "exact" and re.search(r"[*?[]", value)
            for path in matching_paths(value, self.workdir) if wild else (value,):
                if reason := holds_keys(os.path.expanduser(path), self.workdir):
                    return reason
        return ""

    def inside(self, name: str, words: Sequence[Word]) -> bool:
        """Return whether no word of a program names a place outside the working directory. Only the name
        counts, whatever is there now."""
        if name in _OPENS_NOTHING:
            words = [word for word in words if word.kind != "exact"]
        if name in _SCRIPTED:
            at = next((at for at, word in enumerate(words) if word.text[:1] != "-"), len(words))
            words = [*words[:at], *words[at + 1 :]]
        return all(self.is_inside(word.text) for word in words)

    def is_inside(self, word: str) -> bool:
        """Return whether a word names no file outside the working directory. Its value may follow an option's
        letter or ``=``."""
        for value in {*values_in(word)} - {"", "/dev/null"}:
            plain, *wild = re.split(r"[*?[]", os.path.expanduser(value), maxsplit=1)
            if not self._holds(os.path.dirname(plain) if wild else plain):
                return False
        return True

    def _holds(self, path: str) -> bool:
        real = os.path.realpath(os.path.join(self.workdir, path))
        return os.path.commonpath((self.workdir, real)) == self.workdir

    def _find_obstacle(self, name: str) -> str:
        """Return why the file that runs under a name is not a system program, else an empty text."""
        if name in BUILTINS:
            return ""
        home = os.path.realpath(os.path.expanduser("~"))
        for entry in self._environ.get("PATH", os.defpath).split(os.pathsep):
            path = os.path.join(self.workdir, entry, name)
            if not (os.path.isfile(path) and os.access(path, os.X_OK)):
                continue
            real = os.path.realpath(path)
            if self._holds(entry) or self._holds(real):
                return f"{name} is {path}, a file of the working directory"
            switched = _SHIMS in path.split("/") or os.path.basename(real) in _SWITCHERS
            if switched or (home != "/" and os.path.commonpath((home, real)) == home):
                return f"{name} is {path}: a file of the folder may choose what it runs"
            return ""
        return ""

    def _by_git(self, sub: str) -> str:
        if sub not in self._asked:
            program = next(
                (
                    path
                    for entry in self._environ.get("PATH", os.defpath).split(os.pathsep)
                    if os.access(path := os.path.join(self.workdir, entry, "git"), os.X_OK)
                ),
                "",
            )
            self._asked[sub] = runs_by_git(program, sub, self.workdir) if program else ""
        return self._asked[sub]

    def _why_variables(self) -> str:
        for name, value in self._environ.items():
            if name in _LISTS and value:
                parts = value.split(os.pathsep)
            elif name in _FILES:
                parts = [one for one in re.split(r"[\s:=,@]+", value) if "/" in one or self._is_there(one)]
            else:
                continue
            if any(self._holds(part) for part in parts):
                return f"the variable {name} names files of the working directory"
        return ""

    def _is_there(self, name: str) -> bool:
        return bool(name) and os.path.lexists(os.path.join(self.workdir, name))

    def _why_search(self, name: str, rest: Sequence[str]) -> str:
        option = _RECURSES.get(name)
        if option is None or not (not option.pattern or any(option.fullmatch(word) for word in rest)):
            return ""
        operands = [
            word for word in rest if word[:1] != "-" and os.path.isdir(os.path.join(self.workdir, word))
        ]
        return next((why for one in operands or ["."] if (why := below(one, self.workdir))), "")


def values_in(word: str) -> Iterator[str]:
    """Yield the word itself, and what follows an option's letters or ``=`` in it."""
    yield word
    yield word.partition("=")[2]
    if word[:1] == "-":
        yield word.lstrip("-").lstrip(string.ascii_letters)
