"""A watched module: its last valid table, the changes since the last commit, its proofs, and runs that show
violations."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fsm_agent.debug.live.loading import Broken, Loader
from fsm_agent.debug.live.patch import Edit, TableText
from fsm_agent.diagram.versions import SHORT, Version, unpack_revision
from fsm_agent.diagram.versions.compare import (
    Difference,
    ProofChange,
    compare,
    compare_reports,
)
from fsm_agent.errors import ConfigError, FsmAgentError, TableError
from fsm_agent.fsm.base_turn import BaseTurn
from fsm_agent.fsm.machine import Machine
from fsm_agent.fsm.table import Table
from fsm_agent.fsm.verify import verify_table
from fsm_agent.fsm.verify.faults import CounterExample, counterexample
from fsm_agent.fsm.verify.reach import TimeLimit, all_limit_names, limit_names
from fsm_agent.fsm.verify.report import Report
from fsm_agent.support.redaction import bare_environment

log = logging.getLogger(__name__)

LOOK = 0.03
"""Seconds between checks of the file."""
REFINE = 2.0
"""Seconds for finding bounds that are tighter than their formulas."""
ENDING = 10.0
"""Seconds that ``close`` waits for the work in progress."""
LARGEST = 2_000_000
"""Maximum bytes of a module with a table."""

Predict = Callable[[Table], Mapping[str, Any] | None]
"""Predicts the turns of a table from recorded ones; ``None`` if no such turns are recorded."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A valid version of the table: its text, its difference from ``base``, and, once available, the proofs,
    the counterexamples, and the prediction for both."""

    version: Version
    text: TableText
    mark: str
    base: str
    base_limits: Mapping[str, int]
    difference: Difference
    report: Report | None = None
    proofs: ProofChange | None = None
    runs: tuple[Run, ...] = ()
    predicted: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The contents of a page: the last valid version, the error in the current text, and the work in progress
    (``loading``, ``proving``, ``comparing``, or nothing). ``number`` increases with each change."""

    number: int = 0
    shown: Shown | None = None
    broken: Broken | None = None
    busy: str = "loading"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change was not written: findings of the proof, and runs that show them."""

    findings: tuple[str, ...]
    table: Table
    runs: tuple[Run, ...]


@dataclass(slots=True)
class _Base:
    """The version that others are compared with, its proof, and its prediction."""

    name: str
    version: Version
    report: Report | None = None
    predicted: Mapping[str, Any] | None = None


class Watched:
    """``path``: the file; ``name``: of the table in it, empty for its only one. Raises ``ConfigError`` for a
    file that does not exist, cannot be read, or is not Python."""

    def __init__(
        self, path: Path, name: str = "", predict: Predict | None = None, loader: Loader | None = None
    ) -> None:
        self.path = path.resolve()
        if self.path.suffix != ".py":
            raise ConfigError(
                "only a table in Python is watched", str(path), "path.py, path.py:NAME, module:NAME"
            )
        self._predict = predict
        self._text = _read(self.path)
        self._loader = loader or Loader(self.path, name)
        self._base: _Base | None = None
        self._commit = ""
        self._undo: list[tuple[bytes, bytes]] = []
        self._editing = threading.Lock()
        self._news = threading.Condition()
        self._view = View()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Views

    @property
    def view(self) -> View:
        """Return the newest view."""
        return self._view

    @property
    def can_undo(self) -> bool:
        """Return whether the file is unchanged since the last edit."""
        return bool(self._undo) and self._undo[-1][1] == self._text

    def wait(self, number: int, seconds: float) -> View:
        """Return the newest view once its number differs, at the latest after ``seconds``."""
        with self._news:
            self._news.wait_for(lambda: self._view.number != number, seconds)
            return self._view

    # Watching

    def run(self) -> None:
        """Show every saved version until ``close``."""
        seen: tuple[int, ...] | None = (0,)
        while not self._stop.is_set():
            now = _stamp(self.path)
            if now != seen:
                seen = now
                try:
                    self.look()
                except Exception as error:  # the next save is shown all the same
                    log.exception("a version of %s cannot be shown", self.path.name)
                    reason = f"this version cannot be shown ({type(error).__name__}: {error})"
                    self._show(broken=Broken(reason), busy="")
            self._stop.wait(LOOK)

    def start(self) -> None:
        """Watch the file in a thread."""
        self._thread = threading.Thread(target=self.run, daemon=True, name="fsm-agent-live")
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and stop a proof in progress: exiting while a thread is in the solver of ``bounds``
        would abort the process."""
        self._stop.set()
        self._loader.close()
        if self._thread is not None:
            self._thread.join(ENDING)

    def _now(self) -> float:
        """Return the time for proofs; after ``close`` their time limit has passed."""
        return sys.float_info.max if self._stop.is_set() else time.monotonic()

    def look(self) -> None:
        """Show the current file."""
        stamp = _stamp(self.path)
        try:
            self._text = _read(self.path)
        except ConfigError as error:
            self._show(broken=Broken(str(error)), busy="")
            return
        self._show(busy="loading")
        with self._editing:
            loaded = self._loader.load(self._text, lambda: _stamp(self.path) == stamp)
        if isinstance(loaded, Version):
            self._take(loaded, stamp)
        elif loaded is not None:
            self._show(broken=loaded, busy="")

    def _take(self, version: Version, stamp: tuple[int, ...] | None) -> None:
        try:
            text = TableText(self._text, version.table)
        except ConfigError as error:
            self._show(broken=Broken(str(error)), busy="")
            return
        version = _with_limits(version, text)
        base = self._base_for(version)
        difference = compare(base.version.table, version.table)
        shown = Shown(
            version, text, _mark(self._text), base.name, base.version.limits or {}, difference
        )  # fmt: skip
        self._show(shown=shown, broken=None, busy="proving")
        try:
            shown = self._prove(shown, base)
        except TableError as error:
            self._show(broken=Broken(f"this table cannot be proved: {error}"), busy="")
            return
        self._show(shown=shown, busy="comparing")
        for work in (self._compare, self._with_runs, self._with_prediction):
            if self._stop.is_set() or stamp != _stamp(self.path):
                return
            shown = work(shown, base)
            self._show(shown=shown, busy="comparing")
        self._show(busy="")

    def _report(self, version: Version) -> Report:
        limit = TimeLimit(REFINE, clock=self._now)
        return verify_table(version.table, version.limits, small=False, within=limit)

    def _prove(self, shown: Shown, base: _Base) -> Shown:
        report = self._report(shown.version)
        if base.report is None:
            base.report = self._report(base.version)
        proofs = compare_reports(base.version.table, shown.version.table, base.report, report, by=False)
        return replace(shown, report=report, proofs=proofs)

    def _compare(self, shown: Shown, base: _Base) -> Shown:
        assert shown.report is not None
        assert base.report is not None
        tables = (base.version.table, shown.version.table)
        return replace(shown, proofs=compare_reports(*tables, base.report, shown.report))

    def _with_runs(self, shown: Shown, base: _Base) -> Shown:
        assert shown.report is not None
        return replace(shown, runs=runs_against(shown.version.table, shown.report))

    def _with_prediction(self, shown: Shown, base: _Base) -> Shown:
        if self._predict is None or shown.report is None or not shown.report.ok:
            return shown
        return replace(shown, predicted=self._forecast(shown, base))

    def _forecast(self, shown: Shown, base: _Base) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        assert self._predict is not None
        if base.predicted is None and base.report is not None and base.report.ok:
            base.predicted = self._predict(base.version.table)
        now = self._predict(shown.version.table)
        return (base.predicted, now) if base.predicted is not None and now is not None else None

    def _show(self, **changes: Any) -> None:
        with self._news:
            self._view = replace(self._view, **changes, number=self._view.number + 1)
            self._news.notify_all()

    # The last commit

    def _base_for(self, version: Version) -> _Base:
        """Return the version of the last commit; without a commit, the first one seen."""
        commit = _git(self.path.parent, "rev-parse", "HEAD")
        if self._base is None or commit != self._commit:
            self._commit = commit
            self._base = self._load_committed(commit) if commit else None
        if self._base is None:
            self._base = _Base("the first version seen", version)
        return self._base

    def _load_committed(self, commit: str) -> _Base | None:
        top = _git(self.path.parent, "rev-parse", "--show-toplevel")
        inside = os.path.relpath(self.path, os.path.realpath(top))
        try:
            with unpack_revision(commit, self.path.parent) as root:
                file = root / inside
                text = file.read_bytes()
                found = self._loader.load(text, path=file)
                if not isinstance(found, Version):
                    return None
                found = _with_limits(found, TableText(text, found.table))
        except (ConfigError, OSError):
            return None  # not committed yet, or invalid there
        return _Base(f"the last commit ({commit[:SHORT]})", found)

    # Changes

    def edit(self, edit: Edit, mark: str) -> Refusal | None:
        """Change a row in the file and return ``None`` once it is written, or why it is not. ``mark``: hash
        of the text that the page shows. Raises ``ConfigError`` if the change is not possible."""
        with self._editing:
            shown = self._view.shown
            text = _read(self.path)
            if shown is None or mark != shown.mark or mark != _mark(text):
                raise ConfigError(
                    "the file was changed since", self.path.name, "the version that is shown now"
                )
            patched = shown.text.apply(edit)
            loaded = self._loader.load(patched.text)
            if not isinstance(loaded, Version):
                reason = loaded.reason if loaded is not None else "it was not loaded"
                raise ConfigError(
                    f"the changed file makes no table ({reason})", self.path.name, "another change"
                )
            read = TableText(patched.text, loaded.table)
            if loaded.table != patched.table or any(
                read.limits.get(k) != v for k, v in patched.limits.items()
            ):
                raise ConfigError(
                    "this row is written so that the change would mean something else", self.path.name,
                    "a change in the file",
                )  # fmt: skip
            report = self._report(_with_limits(loaded, read))
            if not report.ok:
                return Refusal(_findings(report), loaded.table, runs_against(loaded.table, report))
            self._write(text, patched.text)
        return None

    def undo(self) -> None:
        """Undo the last edit. Raises ``ConfigError`` if the file has changed since then."""
        with self._editing:
            text = _read(self.path)
            if not self._undo or self._undo[-1][1] != text:
                raise ConfigError(
                    "there is no change to take back", self.path.name, "the file as a change left it"
                )
            before, _ = self._undo.pop()
            self._replace(before)

    def _write(self, before: bytes, after: bytes) -> None:
        if _read(self.path) != before:
            raise ConfigError(
                "the file was changed meanwhile", self.path.name, "the version that is shown now"
            )
        self._replace(after)
        self._undo.append((before, after))

    def _replace(self, text: bytes) -> None:
        """Write atomically: a reader sees either the old text or the new one."""
        try:
            with tempfile.NamedTemporaryFile(
                dir=self.path.parent, prefix=".fsm-agent-", delete=False
            ) as made:
                made.write(text)
            os.chmod(made.name, self.path.stat().st_mode & 0o7777)
            os.replace(made.name, self.path)
        except OSError as error:
            with suppress(OSError, UnboundLocalError):
                os.unlink(made.name)
            raise ConfigError(f"the file cannot be written ({error.strerror})", self.path.name) from None


def _findings(report: Report) -> tuple[str, ...]:
    found = [text for check in report.checks for text in check.findings]
    found += [one.finding for one in report.properties if one.finding]
    return (*found, *(text for inner in report.inner for text in _findings(inner)))


def _with_limits(version: Version, text: TableText) -> Version:
    """Add the module's limits if they include all limits of the table."""
    if version.limits is None and set(all_limit_names(version.table)) <= set(text.limits):
        return replace(version, limits=text.limits)
    return version


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _mark(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _read(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the file cannot be read ({error.strerror})", str(path), "a file with a table"
        ) from None
    if len(text) > LARGEST:
        raise ConfigError("the file is too large", f"{len(text):,} bytes", f"at most {LARGEST:,}")
    return text


def _git(folder: Path, *arguments: str) -> str:
    """Return git's output; empty without git, a repository, or a commit."""
    try:
        done = subprocess.run(  # noqa: S603  # the caller's git, fixed arguments
            ["git", "-C", folder, *arguments],  # noqa: S607
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=bare_environment(),
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# ----------------------------------------------------------------------------------------------------
# Counterexamples to a table, move by move.

ROUNDS = 2
"""How often an endless loop is repeated in a run."""


@dataclass(frozen=True, slots=True)
class RunStep:
    """One move: the row, and the counters that it changed, each with its value before and after."""

    row: str
    source: str
    event: str
    dest: str
    changes: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Moves from the start of a turn under ``limits``; ``end`` describes the violation after the last one.
    ``loop``: the number of the first move of an endless loop."""

    title: str
    limits: Mapping[str, int]
    steps: tuple[RunStep, ...]
    end: str
    loop: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the run as plain JSON values."""
        return asdict(self)


def runs_against(table: Table, report: Report) -> tuple[Run, ...]:
    """Return a run that gets stuck or never ends, if a check failed, and one for each violated property."""
    found = counterexample(table) if not all(check.ok for check in report.checks) else None
    runs = [_run_of(table, found)] if found is not None else []
    for one in report.properties:
        if one.rows:
            limits = dict.fromkeys(limit_names(table), 0) | one.maxima
            title = f"{'Known, and b' if one.known else 'B'}reaks: {one.says}"
            steps = tuple(_steps_of(table, [table.row(row).event for row in one.rows], limits))
            runs.append(Run(title, dict(one.maxima), steps, "the property is broken here"))
    return tuple(runs)


def _run_of(table: Table, found: CounterExample) -> Run:
    limits = {name: most for name, most in found.limits.items() if most}
    steps = tuple(_steps_of(table, [*found.start, *found.loop * ROUNDS], found.limits))
    if found.loop:
        end = f"this repeats without end, {len(found.loop)} moves each time"
        return Run("A turn that never ends", limits, steps, end, len(found.start) + 1)
    last = steps[-1].dest if steps else table.initial
    return Run(
        "A turn that gets stuck", limits, steps, f"{last} reports {found.start[-1]}, and no row is open"
    )


def _steps_of(table: Table, events: Sequence[str], limits: Mapping[str, int]) -> Iterator[RunStep]:
    """Yield the machine's moves until no row is open."""
    machine, turn = Machine(table, verified=False), BaseTurn(limits=dict(limits))
    turn.enter(table)
    for event in events:
        source = turn.state
        try:
            move = machine.advance(turn, event)
        except FsmAgentError:  # stuck: the run shows this
            return
        yield RunStep(move.row.id, source, event, move.row.dest, move.changes)
