"""Checkpoints: the files of a working directory before a turn's tools changed them, so that they can be
restored.

Checkpoints are commits in a private git repository in the home. The user's own repository is never touched,
and nothing it configures is run. (Why: decision 92.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from fsm_agent.errors import StoreError
from fsm_agent.settings import CheckpointSettings
from fsm_agent.support.files import lock_file, private_file, private_folder
from fsm_agent.support.redaction import bare_environment
from fsm_agent.support.texts import one_line

__all__ = [
    "FOLDER",
    "Checkpoint",
    "Checkpoints",
    "PutBack",
]


# ----------------------------------------------------------------------------------------------------
# Git, run on a private repository beside the user's working directory.
#
# Only plumbing commands run, in a fixed environment: no other configuration is read, so no filter, hook,
# monitor, external diff, or helper can run, and ``.gitattributes`` change no byte. Of the files in the
# working directory only ``.gitignore`` has an effect.


ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff\n"
"""Overrides every ``.gitattributes``: files are stored unchanged, byte for byte."""
NEUTRAL = {
    "core.bare": "false", "core.hooksPath": os.devnull, "core.fsmonitor": "false", "core.autocrlf": "false",
    "core.looseCompression": "1", "core.excludesFile": os.devnull, "core.attributesFile": os.devnull,
    "core.logAllRefUpdates": "false", "gc.auto": "2000", "gc.autoDetach": "false", "gc.pruneExpire": "now",
    "gc.writeCommitGraph": "false", "maintenance.auto": "false",
}  # fmt: skip
OWN = 0o077
"""The umask that makes a file private to its owner."""


def find_git(workdir: Path) -> str:
    """Return the path of git, or an empty string; a program inside the working directory does not count."""
    found = shutil.which("git")
    return "" if found is None or Path(found).resolve().is_relative_to(workdir) else os.path.abspath(found)


class ShadowGit:
    """The repository ``folder`` with the files of ``workdir``, for one operation of at most ``seconds``.
    ``lock``: the open lock file of the repository, inherited by each of its commands."""

    def __init__(self, program: str, folder: Path, workdir: Path, seconds: float, lock: int) -> None:
        self.folder, self.workdir = folder, workdir
        self._until, self._lock = time.monotonic() + seconds, lock
        self._command = [program, *(part for pair in NEUTRAL.items() for part in ("-c", "=".join(pair)))]
        names = {
            f"GIT_{role}_{part}": "fsm-agent"
            for role in ("AUTHOR", "COMMITTER")
            for part in ("NAME", "EMAIL")
        }
        self._environment = bare_environment() | names | {
            "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C", "GIT_DIR": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1", "GIT_ALLOW_PROTOCOL": "none",
        }  # fmt: skip

    def create(self) -> None:
        """Create the repository if it does not exist, and remove the lock of a killed command."""
        if not (self.folder / "HEAD").exists():
            self("init", "--quiet", "--template=")
        (self.folder / "info").mkdir(mode=0o700, exist_ok=True)
        with open(self.folder / "info" / "attributes", "w", encoding="utf-8", opener=private_file) as file:
            file.write(ATTRIBUTES)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "index.lock").unlink()

    def __call__(
        self,
        *arguments: str,
        given: bytes = b"",
        worktree: Path | None = None,
        index: str = "index",
        fine: tuple[int, ...] = (0,),
        umask: int = OWN,
    ) -> bytes:
        """Run one command in the working directory and return its output. ``worktree``: the root of the
        files, if different. ``fine``: exit codes that are not failures. ``umask``: for files that the command
        creates, -1 for that of this process. Raises ``StoreError``."""
        places = {
            "GIT_WORK_TREE": str(worktree or self.workdir),
            "GIT_INDEX_FILE": str(self.folder / index),
        }
        # runs only commands written here, with the git on the user's PATH
        try:
            ended = subprocess.run(  # noqa: S603
                [*self._command, *arguments],
                input=given,
                capture_output=True,
                cwd=self.workdir,
                env=self._environment | places,
                timeout=max(0.0, self._until - time.monotonic()),
                umask=umask if os.name == "posix" else -1,
                pass_fds=(self._lock,) if os.name == "posix" else (),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StoreError(f"git {arguments[0]} took too long (setting checkpoints.timeout)") from None
        except OSError as error:
            raise StoreError(f"git cannot be run ({error.strerror or error})") from None
        if ended.returncode not in fine:
            said = one_line(ended.stderr.decode("utf-8", "replace"), 300)
            raise StoreError(f"git {arguments[0]} failed: {said or f'exit code {ended.returncode}'}")
        return ended.stdout

    def names(self, *arguments: str, worktree: Path | None = None, index: str = "index") -> list[str]:
        """Return the paths that a command lists."""
        listed = self(*arguments, "-z", worktree=worktree, index=index).split(b"\0")
        return [os.fsdecode(name) for name in listed if name]

    def tree(self, of: str) -> frozenset[str]:
        """Return the paths of all files in a commit or tree."""
        return frozenset(self.names("ls-tree", "-r", "--name-only", of))


def join_paths(names: Iterable[str]) -> bytes:
    """Encode paths for git's standard input."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


# ----------------------------------------------------------------------------------------------------
# The checkpoints of one working directory: created, listed, compared, restored.
#
# Files are restored byte for byte; whatever a restore overwrites or deletes is in a checkpoint that is made
# first. Files that git would ignore, and files left out because of their size, are never touched.


FOLDER = "checkpoints"
"""Folder of the home directory that holds the checkpoints."""
NEVER = (
    ".venv",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    "node_modules",
    "venv",
)
"""Folders of generated files, excluded whether or not git ignores them."""
SHARED = ("*.db-shm", "*.sqlite-shm", "*.sqlite3-shm")
"""Shared memory of an open SQLite database. SQLite recreates it from the database; restoring an old copy
would let two processes write as if each were alone."""
USUAL = frozenset((0o644, 0o755, 0o664, 0o775))
"""Modes that are not stored: git records the executable bit, the umask does the rest."""
_REFS = "refs/checkpoints"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files at one moment (``at``, in seconds since the epoch): before ``tool`` of a turn ran, or, if
    ``tool`` is empty, before files were restored. ``left_out``: paths that existed and are not in the
    checkpoint; ``modes``: unusual file modes."""

    id: str
    at: float
    session: str = ""
    turn: str = ""
    tool: str = ""
    left_out: tuple[str, ...] = ()
    modes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PutBack:
    """The files that a restore wrote, and those it deleted because they did not exist at the checkpoint.
    ``before``: the checkpoint of the previous state, ``None`` if nothing was changed."""

    restored: tuple[str, ...]
    deleted: tuple[str, ...]
    before: Checkpoint | None

    def __str__(self) -> str:
        total = len(self.restored) + len(self.deleted)
        if not total:
            return "No file is different from what it was."
        return f"Files put back: {len(self.restored):,} written as they were, {len(self.deleted):,} deleted."


@dataclass(slots=True)
class _Survey:
    """The contents of the working directory: paths to store, paths to leave out, and unusual modes."""

    kept: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Checkpoints:
    """Checkpoints of the files below ``workdir``, kept in ``home`` under the rules of ``settings``."""

    def __init__(
        self, home: Path, workdir: Path, settings: CheckpointSettings, now: Callable[[], float] = time.time
    ) -> None:
        self.workdir, self._home, self._settings, self._now = workdir.resolve(), home, settings, now
        self.folder = home / FOLDER / hashlib.sha256(os.fsencode(self.workdir)).hexdigest()[:20]

    @property
    def trouble(self) -> str:
        """The reason why no checkpoint can be made here; empty if one can."""
        if not self._settings.enabled:
            return "switched off (checkpoints.enabled)"
        if Path.home().resolve().is_relative_to(self.workdir):
            return f"{self.workdir} is a home directory, or has one in it"
        if self._home.resolve() == self.workdir:
            return f"{self.workdir} is the agent's own home"
        return "" if find_git(self.workdir) else "git is not installed"

    def make(self, key: str, *, session: str = "", turn: str = "", tool: str = "") -> Checkpoint:
        """Return the checkpoint stored under ``key``, or make one of the current files. Raises ``StoreError``
        where that is not possible, or exceeds a limit."""
        with self._at_work() as git:
            if found := self._known_checkpoint(git, key):
                return found
            survey = self._survey(git)
            return self._keep(git, key, survey, session, turn, tool)

    def all(self) -> list[Checkpoint]:
        """Return all checkpoints, newest first."""
        if self.trouble or not (self.folder / "HEAD").exists():
            return []
        with self._at_work() as git:
            return [one for _, one in self._list_refs(git, _REFS)]

    def of_turn(self, turns: Collection[str]) -> Checkpoint | None:
        """Return the oldest checkpoint that a tool of one of these turns made."""
        mine = [one for one in self.all() if one.tool and one.turn in turns]
        return min(mine, key=lambda one: one.at, default=None)

    def diff(self, checkpoint: Checkpoint) -> str:
        """Return the changes since the checkpoint, as a unified diff."""
        with self._at_work() as git:
            now = self._tree(git, self._survey(git, git.tree(checkpoint.id), checkpoint.left_out))
            output = git("diff", "--no-ext-diff", "--no-textconv", "--no-color", checkpoint.id, now)
            return output.decode("utf-8", "replace")

    def put_back(self, checkpoint: Checkpoint) -> PutBack:
        """Restore the files of the checkpoint, after a checkpoint of the current ones. Raises
        ``StoreError``."""
        with self._at_work() as git:
            target = git.tree(checkpoint.id)
            survey = self._survey(git, target, checkpoint.left_out)
            same = self._tree(git, survey) == git("rev-parse", f"{checkpoint.id}^{{tree}}").decode().strip()
            if same and survey.modes == checkpoint.modes:
                return PutBack((), (), None)
            key = f"undo {uuid.uuid4().hex}"
            before = self._keep(git, key, survey, checkpoint.session, checkpoint.turn)
            git("read-tree", "--reset", checkpoint.id)
            restored = self._restore_files(git, checkpoint)
            # applies the restored .gitignore: files that it hid may have existed then, and were not stored
            new = self._others(git) - target
            deleted = sorted(new & set(survey.kept))
            self._delete(deleted)
            return PutBack(tuple(sorted(restored)), tuple(deleted), before)

    # Work on the repository

    @contextmanager
    def _at_work(self) -> Iterator[ShadowGit]:
        if why := self.trouble:
            raise StoreError(f"there are no checkpoints here: {why}")
        try:
            private_folder(self.folder)
            with lock_file(self.folder / "lock", self._settings.timeout) as lock:
                program = find_git(self.workdir)
                git = ShadowGit(program, self.folder, self.workdir, self._settings.timeout, lock)
                git.create()
                yield git
        except OSError as error:
            raise StoreError(f"checkpoints cannot be used ({error})") from None

    def _list_refs(self, git: ShadowGit, refs: str) -> list[tuple[str, Checkpoint]]:
        """List checkpoints with their references, newest first."""
        form = "--format=%(refname) %(objectname) %(contents)"
        lines = git("for-each-ref", form, refs).decode("ascii", "replace").splitlines()
        fields = [line.split(" ", 2) for line in lines if line]
        found = [(ref, _read(commit, message)) for ref, commit, message in fields]
        return sorted(found, key=lambda pair: pair[1].at, reverse=True)

    def _known_checkpoint(self, git: ShadowGit, key: str) -> Checkpoint | None:
        return next((one for _, one in self._list_refs(git, _ref(key))), None)

    def _keep(
        self, git: ShadowGit, key: str, survey: _Survey, session: str, turn: str, tool: str = ""
    ) -> Checkpoint:
        """Store a checkpoint of the surveyed files; delete the oldest ones beyond the limit."""
        meta = Checkpoint("", self._now(), session, turn, tool, tuple(survey.left_out), dict(survey.modes))
        fields = {name: value for name, value in asdict(meta).items() if value and name != "id"}
        message = json.dumps(fields).encode()
        commit = git("commit-tree", self._tree(git, survey), given=message).decode().strip()
        git("update-ref", _ref(key), commit)
        if beyond := self._list_refs(git, _REFS)[self._settings.keep :]:
            git("update-ref", "--stdin", given="".join(f"delete {ref}\n" for ref, _ in beyond).encode())
            git("gc", "--auto", "--quiet")
        return _read(commit, message.decode())

    def _tree(self, git: ShadowGit, survey: _Survey) -> str:
        """Make the index match the survey, and write it as a tree. Git reads only files that are new to it,
        or whose stat data changed since they were added."""
        kept, known = set(survey.kept), set(git.names("ls-files", "--cached"))
        if deleted := known - kept:
            git("update-index", "--force-remove", "-z", "--stdin", given=join_paths(deleted))
        if new := (kept - known) | (kept & set(git.names("diff-files", "--name-only"))):
            git(
                "update-index",
                "--add",
                "--remove",
                "--replace",
                "-z",
                "--stdin",
                given=join_paths(sorted(new)),
            )
        return git("write-tree").decode().strip()

    # The working directory

    def _survey(self, git: ShadowGit, also: Iterable[str] = (), never: Collection[str] = ()) -> _Survey:
        """List the files that are not ignored; ``also`` is always kept, ``never`` never."""
        rules, survey, wanted, skipped = self._settings, _Survey(), set(also), set(never)
        listed = self._others(git)
        if len(listed) > rules.max_files:
            raise StoreError(f"more than {rules.max_files:,} files (setting checkpoints.max_files)")
        for name in sorted(listed | wanted):
            path = self.workdir / name
            if name not in listed and path.parent.resolve() != path.parent:
                continue  # a link now leads out of its folder
            with contextlib.suppress(OSError):
                self._note(survey, name, os.lstat(path), whole=name in wanted, never=name in skipped)
        if survey.size > rules.max_bytes:
            raise StoreError(f"more than {rules.max_bytes:,} bytes (setting checkpoints.max_bytes)")
        return survey

    def _note(self, survey: _Survey, name: str, found: os.stat_result, *, whole: bool, never: bool) -> None:
        regular = stat.S_ISREG(found.st_mode)
        if stat.S_ISDIR(found.st_mode):  # another repository, or a directory where a file was
            return
        large = found.st_size > self._settings.max_file_bytes and not whole
        usable = (regular and os.access(self.workdir / name, os.R_OK)) or stat.S_ISLNK(found.st_mode)
        if never or large or not usable:
            survey.left_out.append(name)
            return
        survey.kept.append(name)
        survey.size += found.st_size
        if regular and stat.S_IMODE(found.st_mode) not in USUAL:
            survey.modes[name] = stat.S_IMODE(found.st_mode)

    def _others(self, git: ShadowGit) -> set[str]:
        """List files that are not ignored. Rules of parent folders apply as in the user's git."""
        top = self._top(git)
        hidden = [f"--exclude={name}" for name in (*SHARED, *(f"{folder}/" for folder in NEVER))]
        if (home := self._home.resolve()).is_relative_to(top):
            hidden.append(f"--exclude=/{_literal(home.relative_to(top))}/")
        found = git.names("ls-files", "--others", "--exclude-standard", *hidden, worktree=top, index="none")
        return {name for name in found if not name.endswith("/")}

    def _top(self, git: ShadowGit) -> Path:
        """Return the enclosing repository, or the working directory if none exists or it ignores that."""
        home = Path.home().resolve()
        for above in self.workdir.parents:
            if home.is_relative_to(above):
                break
            if (above / ".git").exists():
                below = f"./{self.workdir.relative_to(above).as_posix()}/"
                path = join_paths([below])
                output = git("check-ignore", "-z", "--stdin", given=path, worktree=above, fine=(0, 1))
                return self.workdir if output else above
        return self.workdir

    def _restore_files(self, git: ShadowGit, checkpoint: Checkpoint) -> list[str]:
        """Write files that differ from the index; those with stored modes are private from the start."""
        git("update-index", "-q", "--really-refresh", fine=(0, 1))
        changed = git.names("diff-files", "--name-only")
        for private in (False, True):
            names = [name for name in changed if (name in checkpoint.modes) == private]
            umask = OWN if private else -1
            git("checkout-index", "-f", "-u", "-z", "--stdin", given=join_paths(names), umask=umask)
        for name, mode in checkpoint.modes.items():
            with contextlib.suppress(FileNotFoundError):  # another program has removed it since
                if stat.S_IMODE(os.lstat(self.workdir / name).st_mode) != mode & 0o777:
                    os.chmod(self.workdir / name, mode & 0o777)
        return changed

    def _delete(self, names: Iterable[str]) -> None:
        """Delete files, and folders that become empty."""
        emptied: set[PurePosixPath] = set()
        for name in names:
            (self.workdir / name).unlink(missing_ok=True)
            emptied.update(PurePosixPath(name).parents)
        for folder in sorted(emptied - {PurePosixPath(".")}, key=lambda one: -len(one.parts)):
            with contextlib.suppress(OSError):
                (self.workdir / folder).rmdir()


def _ref(key: str) -> str:
    return f"{_REFS}/{hashlib.sha256(key.encode()).hexdigest()[:20]}"


def _read(commit: str, message: str) -> Checkpoint:
    fields: dict[str, Any] = json.loads(message)
    return Checkpoint(commit, **{**fields, "left_out": tuple(fields.get("left_out", ()))})


def _literal(path: Path) -> str:
    """Escape a path as a pattern that matches it alone."""
    return "".join(f"\\{one}" if one in "*?[\\" else one for one in path.as_posix())
