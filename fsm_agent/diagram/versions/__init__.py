"""Versions of a table: of a git revision, the working tree, or a file. ``compare`` computes the changes
between two, ``rendering`` shows them.

The code of another version is never imported here. It is written to a temporary folder and imported by a
separate process, without this one's environment and with a time limit; the result is JSON. The code still
runs, as its tests would."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from fsm_agent.diagram import table_json
from fsm_agent.diagram.scxml import from_scxml
from fsm_agent.diagram.statecharts import from_xstate
from fsm_agent.diagram.table_json import expands_alike, table_from
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from fsm_agent.support.redaction import bare_environment

OWN, BEFORE = "fsm_agent_states.table:TURN", "states.table:TURN"
"""The turn's own table, and its location in older versions."""
WORKTREE = (".", "WORKTREE")
SECONDS = 30.0
ALLOWED = (
    "a git revision, . for the working tree, a file with a table (path.py, path.py:NAME, path.json,"
    " path.scxml), or module:table"
)
COMPARED = "cannot be compared"
SHORT = 10
"""Characters of a full commit id that are shown."""
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MODULE = re.compile(r"[A-Za-z_][\w.]*:\w+")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table. ``limits`` are those for its own turn's default settings, if it has them;
    ``notes`` are for readers of a comparison."""

    name: str
    table: Table
    limits: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()


def version_of(
    spec: str, target: str | None = None, *, folder: Path | None = None, seconds: float = SECONDS
) -> Version:
    """Load the version named by ``spec``: see ``ALLOWED``. ``target`` is the ``module:table`` of a revision
    or working tree, by default the turn's. ``folder`` is the base of paths and git, by default the current
    one. Raises ``ConfigError``."""
    here = (folder or Path.cwd()).resolve()
    path, _, attribute = (spec, "", "") if not re.search(r"\.py:\w+\Z", spec) else spec.rpartition(":")
    if spec.endswith((".json", ".scxml")) and (here / spec).is_file():
        return _of_file(spec, here / spec)
    if path.endswith(".py") and (here / path).is_file():
        file = (here / path).resolve()
        return _load(
            spec, [str(file.parent)], f"{file}:{attribute}" if attribute else str(file), None, seconds
        )
    if _MODULE.fullmatch(spec) and not (here / spec).exists():
        return _load(spec, _roots(here), spec, None, seconds)
    if spec in WORKTREE:
        return _load("working tree", _roots(here), target or _own(_roots(here)), target, seconds)
    return _of_revision(spec, target, here, seconds)


def _of_file(spec: str, path: Path) -> Version:
    """Load a JSON description, or a machine of another engine."""
    try:
        text = path.read_text("utf-8")
        value = None if path.suffix == ".scxml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read it ({error})", spec, "a file of diagram --format json") from None
    if path.suffix == ".scxml":
        return _of_engine(spec, from_scxml(text, spec))
    if isinstance(value, dict) and isinstance(value.get("states"), dict):
        return _of_engine(spec, from_xstate(text, spec))
    version = _version(spec, {"table": value, "limits": None})
    if version.notes:
        what = "lines and rows of this description do not fit together"
        raise ConfigError(what, spec, "diagram --format json of this version")
    return version


def _of_revision(spec: str, target: str | None, here: Path, seconds: float) -> Version:
    """Load ``REVISION``, or ``REVISION:path.py`` with or without ``:NAME``."""
    revision, _, inside = spec.partition(":")
    prefix = _git(here, "rev-parse", "--show-prefix", spec=spec).decode().strip()
    with unpack_revision(revision, here) as root:
        if inside:
            return _load(spec, [str(root)], str(root / inside), None, seconds)
        roots = [*(_roots(root / prefix) if prefix and (root / prefix).is_dir() else ()), *_roots(root)]
        version = _load(spec, roots, target or _own(roots), target, seconds)
    return replace(version, name=spec[:SHORT]) if _COMMIT.fullmatch(spec) else version


@contextmanager
def unpack_revision(
    revision: str, folder: Path | None = None, *, what: str = COMPARED, allowed: str = ALLOWED
) -> Iterator[Path]:
    """Yield a temporary folder with the Python files of a git revision. Raises ``ConfigError`` for an unknown
    one, which says ``what`` is wrong and what is ``allowed``."""
    git = partial(_git, spec=revision, what=what, allowed=allowed)
    here, one = (folder or Path.cwd()).resolve(), f"{revision}^{{commit}}"
    found = git(here, "rev-parse", "--verify", "--quiet", "--end-of-options", one)
    top = Path(git(here, "rev-parse", "--show-toplevel").decode().strip())
    archive = git(top, "archive", "--format=tar", found.strip().decode(), "--", "*.py")
    with tempfile.TemporaryDirectory(prefix="fsm-agent-") as name:
        root = Path(name).resolve()
        _unpack(archive, root)
        yield root


def _roots(folder: Path) -> list[str]:
    """Return the import roots of a project: its top, ``src``, and ``states``, which contains the turn's own
    package."""
    inside = [
        folder / "src",
        *((folder / "states",) if (folder / "states" / "fsm_agent_states").is_dir() else ()),
    ]
    return [str(path) for path in (folder, *inside) if path.is_dir()]


def _own(roots: list[str]) -> str:
    """Return the turn's own table in the version below ``roots``."""
    return BEFORE if any((Path(root) / "states" / "table.py").is_file() for root in roots) else OWN


def _load(name: str, roots: list[str], target: str, chosen: str | None, seconds: float) -> Version:
    own = target in (OWN, BEFORE)
    command = [
        sys.executable,
        "-I",
        "-B",
        table_json.__file__,
        os.pathsep.join(roots),
        target,
        *(["--limits"] if own else []),
    ]
    with tempfile.TemporaryDirectory(prefix="fsm-agent-") as home:
        env = bare_environment() | {"HOME": home, "USERPROFILE": home}
        try:
            done = subprocess.run(  # noqa: S603  # our own interpreter and file
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                cwd=home,
                env=env,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(f"its code took longer than {seconds:g} seconds to load", name) from None
        except OSError as error:
            raise ConfigError(f"no process could be started ({error.strerror})", sys.executable) from None
    if done.returncode:
        raise ConfigError(
            f"the table {target} cannot be loaded ({_last_line(done.stderr)})", name, _advice(own, chosen)
        )
    try:
        return _version(name, json.loads(done.stdout))
    except ValueError:
        raise ConfigError(f"the process that loaded {target} gave no table", name) from None


def _version(name: str, value: Mapping[str, Any]) -> Version:
    described = value["table"]
    table = table_from(described, name)
    alike = expands_alike(table, described)
    notes = (
        ()
        if alike
        else (
            (
                f"{name}: its own engine expands the lines to other rows; compared are the rows that this one"
                " makes"
            ),
        )
    )
    return Version(name, table, value["limits"], notes)


def _advice(own: bool, chosen: str | None) -> str:
    return (
        "another table with --table module:table" if own and chosen is None else "code that can be imported"
    )


def _of_engine(name: str, table: Table) -> Version:
    return Version(name, table, table.default_limits() if table.default_limits else None)


def _git(folder: Path, *arguments: str, spec: str, what: str = COMPARED, allowed: str = ALLOWED) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603  # what users give follows --end-of-options, or is a commit that git named
            ["git", "-C", folder, *arguments],  # noqa: S607  # the caller's git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=bare_environment() | {name: os.environ[name] for name in os.environ if name[:4] == "GIT_"},
            check=False,
        )
    except OSError as error:
        raise ConfigError(f"git cannot be run ({error.strerror})", spec, allowed) from None
    if done.returncode:
        reason = _last_line(done.stderr) if done.stderr.strip() else "there is no such revision or file"
        raise ConfigError(f"{what} ({reason})", spec, allowed)
    return done.stdout


def _unpack(archive: bytes, root: Path) -> None:
    """Extract the files of a tar; skip links and paths that lead out of ``root``."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            content = tar.extractfile(member) if member.isfile() else None
            if content is None or path.is_absolute() or ".." in path.parts:
                continue
            file = root.joinpath(*path.parts)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.read())


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
