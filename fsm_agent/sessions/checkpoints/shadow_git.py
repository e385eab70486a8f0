"""Git, run on a repository of our own beside somebody's working directory.

Only plumbing is called, with an environment made for it: no configuration but ours is read, so there are no
filters, hooks, monitors, external diffs, or helpers that could be run, and ``.gitattributes`` change no byte.
Of what stands in the working directory only ``.gitignore`` counts."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from fsm_agent.errors import StoreError
from fsm_agent.support.bare_environment import bare_environment
from fsm_agent.support.private_files import private_file
from fsm_agent.support.texts import one_line

ATTRIBUTES = "* -text !eol !ident !filter !working-tree-encoding !diff\n"
"""Above every ``.gitattributes``: files are kept as they are, byte for byte."""
NEUTRAL = {
    "core.bare": "false", "core.hooksPath": os.devnull, "core.fsmonitor": "false", "core.autocrlf": "false",
    "core.looseCompression": "1", "core.excludesFile": os.devnull, "core.attributesFile": os.devnull,
    "core.logAllRefUpdates": "false", "gc.auto": "2000", "gc.autoDetach": "false", "gc.pruneExpire": "now",
    "gc.writeCommitGraph": "false", "maintenance.auto": "false",
}  # fmt: skip
OWN = 0o077
"""The umask under which a file is its owner's alone."""


def find_git(workdir: Path) -> str:
    """Return the git program, or an empty string; one that lies in the working directory does not count."""
    found = shutil.which("git")
    return "" if found is None or Path(found).resolve().is_relative_to(workdir) else os.path.abspath(found)


class ShadowGit:
    """The repository ``folder`` with the files of ``workdir``, for one piece of work of at most ``seconds``.
    ``lock``: an open file that stands for the repository, held for as long as one of its commands runs."""

    def __init__(self, program: str, folder: Path, workdir: Path, seconds: float, lock: int) -> None:
        self.folder, self.workdir = folder, workdir
        self._until, self._lock = time.monotonic() + seconds, lock
        self._command = [program, *(part for pair in NEUTRAL.items() for part in ("-c", "=".join(pair)))]
        who = {
            f"GIT_{who}_{what}": "fsm-agent" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
        }
        self._environment = bare_environment() | who | {
            "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C", "GIT_DIR": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1", "GIT_ALLOW_PROTOCOL": "none",
        }  # fmt: skip

    def made(self) -> None:
        """Make the repository if it is not there, and clear what a command that was killed left."""
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
        """Run one command in the working directory and return what it printed. ``worktree``: where the files
        begin, if not there. ``fine``: exit codes that are no failure. ``umask``: of files that it makes, -1
        for that of this process. Raises ``StoreError``."""
        places = {
            "GIT_WORK_TREE": str(worktree or self.workdir),
            "GIT_INDEX_FILE": str(self.folder / index),
        }
        # only commands of ours, and of the program that the user's PATH names
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
        """Return the paths of all files of a commit or tree."""
        return frozenset(self.names("ls-tree", "-r", "--name-only", of))


def joined(names: Iterable[str]) -> bytes:
    """Return paths as git reads them from its input."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)
