"""Where a path may lead, and what may not be written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fsm_agent.approvals.acting_files import plain_name
from fsm_agent.tools import ToolFailure

_GIT = frozenset((".git", "git~1"))
"""Git's own folder, also by its short name on old Windows file systems."""


def resolve(root: Path, path: str) -> Path:
    """The real place of ``path``, which is relative to ``root`` or absolute, and must lie in ``root``.

    Links are followed first, so neither ``..`` nor a link leads outside; a path in other letters than the
    directory's counts as outside, also where the file system does not tell them apart. It keeps a model from
    straying; it is no sandbox against other programs that change links meanwhile; for reading,
    ``still_inside`` looks again. Raises ``ToolFailure``."""
    if "\0" in path or path.startswith("~"):
        raise ToolFailure(f"{path!r} is not a usable path: write it relative to the working directory.")
    base = root.resolve()
    try:
        real = (base / path).resolve()
    except (OSError, RuntimeError) as error:  # a circle of links
        raise ToolFailure(f"{path}: cannot be resolved ({error}).") from None
    if any(place.is_symlink() for place in (real, *real.parents)):  # since Python 3.13 a circle is no error
        raise ToolFailure(f"{path}: cannot be resolved (Symlink loop).")
    if real != base and base not in real.parents:
        raise ToolFailure(f"{path}: outside the working directory {base}. Only paths inside it can be used.")
    return real


def writable(root: Path, path: str, protected: Sequence[Path] = ()) -> Path:
    """``resolve`` for a file that will be written. Git's own folder is refused, because hooks and
    configuration in it are programs that would run without anybody's yes, and so are ``protected`` folders.
    Raises ``ToolFailure``."""
    real = resolve(root, path)
    if any(plain_name(part) in _GIT for part in real.relative_to(root.resolve()).parts):
        raise ToolFailure(f"{path}: files of Git itself are not written; use git.")
    for folder in protected:
        closed = folder.resolve()
        if real == closed or closed in real.parents:
            raise ToolFailure(f"{path}: belongs to the agent itself and is not written.")
    return real


def still_inside(folders: Sequence[Path], descriptor: int, path: str) -> None:
    """Is the file that was opened in one of ``folders``, also when a link was changed since its path was
    looked at? Raises ``ToolFailure``. Only where the system tells what was opened (Linux)."""
    try:
        real = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    except OSError:
        return
    if not any(folder.resolve() in real.parents for folder in folders):
        raise ToolFailure(
            f"{path}: leads outside the working directory since a moment ago. Nothing was read."
        )


@contextmanager
def plain_errors(path: str) -> Iterator[None]:
    """What the system says about ``path``, as a tool's failure in one short line."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailure(f"{path}: no such file or directory.") from None
    except OSError as error:
        raise ToolFailure(f"{path}: {error.strerror or error}.") from None
