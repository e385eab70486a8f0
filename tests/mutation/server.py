"""Run tests in forked children, so that pytest and the libraries are imported once.

``measure.py`` starts this file by its path, in a copy of the tree whose modules can be imported, and writes one
job a line to its standard input; each answer is a line of JSON. Nothing of the project is imported before a
fork, so a child sees the sources as they are then. This file imports nothing of the project, either.

Jobs (``"do"`` names them)::

    {"do": "record", "sources": [...], "options": [...], "to": "FILE"}
    {"do": "try", "options": [...], "rounds": [["ID", ...], ...], "usual": {"ID": SECONDS},
     "cpu": SECONDS, "patience": SECONDS}

``record`` runs the tests once with instrumented sources: each statement in a function is preceded by an
assignment into one shared ``bytearray``, so that after a test the array says which statements ran. ``try``
runs tests, in rounds of one file each, and stops at the first that fails."""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import traceback
import zlib
from collections.abc import Generator, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

SLOWER = 15.0
"""How many times as long as when it was recorded a test may take, besides the patience of its job."""
IDLE = 0.3
"""CPU seconds: what uses less in such a time only waits."""
FEW = 5


# Recording


class Instrument:
    """Compiles the sources so that they note which statements run.

    ``statements`` are (file, line) in the order of the array. Statements of modules and classes are left out,
    because they run at import."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = {str(Path(name).resolve()): name for name in sources}
        self.statements: list[tuple[str, int]] = []
        self.hits = builtins.__hits__ = bytearray()  # type: ignore[attr-defined]
        original = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, fullname: str) -> Any:
            path = str(Path(loader.get_filename(fullname)).resolve())
            return self._compiled(path) if path in self._sources else original(loader, fullname)

        SourceFileLoader.get_code = get_code

    def ran(self) -> bytes:
        """Which statements ran since the last call."""
        found = bytes(self.hits)
        self.hits[:] = bytes(len(found))
        return found

    def _compiled(self, path: str) -> Any:
        tree = ast.parse(Path(path).read_bytes())
        self._below(tree, self._sources[path], in_function=False)
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def _below(self, node: ast.AST, name: str, in_function: bool) -> None:
        for child in ast.iter_child_nodes(node):
            self._below(child, name, in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))
        if in_function:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list):
                    setattr(node, field, list(self._noted(block, name)))

    def _noted(self, block: list[ast.stmt], name: str) -> Iterator[ast.stmt]:
        for at, statement in enumerate(block):
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (at == 0 and text):  # a docstring is one only at the beginning
                note = ast.parse(f"__hits__[{len(self.statements)}] = 1").body[0]
                for part in ast.walk(note):
                    ast.copy_location(part, statement)
                self.statements.append((name, statement.lineno))
                self.hits.append(0)
                yield note
            yield statement


class Recorder:
    """What each test runs and costs. Tests that do not pass are left out; the statements that a file runs at
    collection are stored under its name."""

    def __init__(self, instrument: Instrument, to: str) -> None:
        self._instrument, self._to = instrument, to
        self._passed = True
        self._tests: list[tuple[str, float, str]] = []
        self._failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        self._instrument.ran()
        before = cpu()
        report = yield
        if isinstance(collector, pytest.File):
            self._keep(collector.nodeid, cpu() - before)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._instrument.ran()
        before, self._passed = cpu(), True
        result = yield
        if self._passed:
            self._keep(item.nodeid, cpu() - before)
        else:
            self._failed.append(item.nodeid)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed = self._passed and report.passed

    def pytest_sessionfinish(self) -> None:
        libraries = [
            name
            for name, module in list(sys.modules.items())
            if "site-packages" in (getattr(module, "__file__", None) or "") and "." not in name
        ]
        found = {
            "statements": self._instrument.statements, "tests": self._tests, "failed": self._failed,
            "libraries": libraries,
        }  # fmt: skip
        Path(self._to).write_text(json.dumps(found), encoding="utf-8")

    def _keep(self, name: str, seconds: float) -> None:
        ran = base64.b85encode(zlib.compress(self._instrument.ran())).decode()
        self._tests.append((name, round(seconds, 3), ran))


def cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def record(job: dict[str, Any]) -> None:
    pytest.main(job["options"], plugins=[Recorder(Instrument(job["sources"]), job["to"])])


# Trying


class Trial:
    """Runs the wanted tests, file after file; each is imported when its turn comes, so that a fault that an
    early file finds costs little. What happens is said in lines to ``out``."""

    def __init__(self, rounds: Sequence[Sequence[str]], out: int) -> None:
        self._rounds, self._out = rounds, out
        self._files: dict[str, pytest.Item | pytest.Collector] = {}
        self._items: dict[str, list[pytest.Item]] = {}

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files, and import none."""
        session.perform_collect(genitems=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item | pytest.Collector]) -> None:
        if not self._files:
            self._files = {file.nodeid: file for file in items}
            items.clear()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for wanted in self._rounds:
            items = self._chosen(session, wanted)
            for at, item in enumerate(items, 1):
                following = items[at] if at < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    return True
            if session.shouldfail or session.shouldstop:
                return True
        return True

    def _chosen(self, session: pytest.Session, wanted: Sequence[str]) -> list[pytest.Item]:
        """The tests of one file. A fault may give the rows of a test other names: then its first rows are run."""
        file = wanted[0].split("::")[0]
        if file not in self._items:
            self._items[file] = list(session.genitems(self._files[file]))
            session.testscollected += len(self._items[file])
        items = self._items[file]
        lost = {name.split("[")[0] for name in {*wanted} - {item.nodeid for item in items}}
        renamed = [item for item in items if item.nodeid.split("[")[0] in lost]
        return [item for item in items if item.nodeid in wanted or item in renamed[:FEW]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._say("began", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._say("failed", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._say("failed", report.nodeid)

    def _say(self, what: str, name: str) -> None:
        os.write(self._out, (json.dumps([what, name]) + "\n").encode())


def attempt(job: dict[str, Any], out: int) -> None:
    limit = int(job["cpu"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    files = dict.fromkeys(wanted[0].split("::")[0] for wanted in job["rounds"])
    status = pytest.main(["-x", *job["options"], *files], plugins=[Trial(job["rounds"], out)])
    os.write(out, (json.dumps(["ended", int(status)]) + "\n").encode())


def watched(pid: int, source: int, job: dict[str, Any]) -> dict[str, Any]:
    """Read what a child says until it ends, or until it neither works nor says anything for long. One that
    works for too long is stopped by its limit of CPU, so that a busy machine makes no fault of a test."""
    buffer, last, ran, worked = b"", "", 0, 0.0
    usual: dict[str, float] = job["usual"]
    while True:
        if not select.select([source], [], [], job["patience"] + SLOWER * usual.get(last, 0.0))[0]:
            before, worked = worked, _work_of(pid)
            if worked - before < IDLE:
                return {"outcome": "timeout", "test": last, "ran": ran}
            continue
        data = os.read(source, 65_536)
        if not data:  # it died: of its limit, or of what the fault made of it
            return {"outcome": "timeout" if _of_limit(pid) else "died", "test": last, "ran": ran}
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            what, value = json.loads(line)
            if what == "began":
                last, ran = value, ran + 1
            elif what == "failed":
                return {"outcome": "killed", "test": value, "ran": ran}
            elif value in (0, 5):
                return {"outcome": "survived", "test": "", "ran": ran}
            else:
                return {"outcome": "died", "test": f"{last} (pytest ended with {value})", "ran": ran}


def _work_of(group: int) -> float:
    """CPU seconds of the processes of a group that are alive; 0 where the system does not say."""
    seconds = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == group:
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _of_limit(pid: int) -> bool:
    """Whether a process that has ended was stopped by its limit of CPU."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return (
        ended is not None
        and ended.si_code != os.CLD_EXITED
        and ended.si_status in (signal.SIGXCPU, signal.SIGKILL)
    )


# The server


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    quiet = os.open("child.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path.pop(0)  # the folder of this file
    for line in sys.stdin:
        job = json.loads(line)
        if job["do"] == "load":
            for name in job["libraries"]:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            answers.write("{}\n")
            continue
        answers.write(json.dumps(_in_child(job, quiet)) + "\n")


def _in_child(job: dict[str, Any], quiet: int) -> dict[str, Any]:
    before = cpu()
    source, out = os.pipe()
    os.ftruncate(quiet, 0)
    os.lseek(quiet, 0, os.SEEK_SET)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(source)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        try:
            if job["do"] == "record":
                record(job)
            else:
                attempt(job, out)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)
    os.close(out)
    if job["do"] == "record":
        os.waitpid(pid, 0)
        answer: dict[str, Any] = {}
    else:
        answer = watched(pid, source, job)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        shutil.rmtree(".hypothesis", ignore_errors=True)
    os.close(source)
    return answer | {"cpu": round(cpu() - before, 2)}


if __name__ == "__main__":
    serve()
