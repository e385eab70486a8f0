"""The pytest plugin, loaded with ``fsm-agent``.

Each test has its own home for agents without ``home=``, so that no test writes into yours or reads what
another one left. An existing ``FSM_AGENT_HOME`` stays unchanged.

``--fsm-coverage FILE.json`` writes which rows of a table the test run took, ``--fsm-coverage-diagram
FILE.svg`` draws them. ``--fsm-coverage-table MODULE:NAME`` (or ``fsm_coverage_table`` in the ini file)
selects the table; the default is the built-in turn. Under xdist the counts of all workers are added up.

Fixtures: ``fake_clock``; ``scripted_model(*replies)``, which makes a model port on that clock; and
``evaluate(agent, cases, scores, gates)``, which fails the test if a gate does not hold.

The engine is imported only when it is needed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fsm_agent.evaluation import EvalRun
    from fsm_agent.fsm.table import Table
    from fsm_agent.providers.scripted import FakeClock, ScriptedModel
    from fsm_agent.testing.coverage import RowCoverage

TURN = "fsm_agent_states.table:TURN"
HOME_VARIABLE = "FSM_AGENT_HOME"
SENT = "fsm_agent_rows"
"""The key under which an xdist worker transfers its counts."""
OPTIONS = ("fsm_coverage", "fsm_coverage_diagram")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of row coverage."""
    group = parser.getgroup("fsm-agent", "coverage of a transition table")
    group.addoption(
        "--fsm-coverage", metavar="FILE.json", help="write which rows of the table were taken, and how often"
    )
    group.addoption(
        "--fsm-coverage-diagram", metavar="FILE.svg", help="draw them; rows that were never taken are red"
    )
    group.addoption("--fsm-coverage-table", metavar="MODULE:NAME", help=f"of which table; default: {TURN}")
    parser.addini(
        "fsm_coverage_table", f"MODULE:NAME of the table that --fsm-coverage is about (default: {TURN})"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests out of the user's home, and count rows if an option asks for it."""
    if not config.pluginmanager.has_plugin(Homes.NAME) and HOME_VARIABLE not in os.environ:
        config.pluginmanager.register(Homes(), Homes.NAME)
    wanted = any(config.getoption(option) for option in OPTIONS)
    if wanted and not config.pluginmanager.has_plugin(Rows.NAME):
        config.pluginmanager.register(Rows(config), Rows.NAME)


class Homes:
    """Gives each test an empty home, and code that runs between tests one shared home."""

    NAME = "fsm_agent_homes"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fsm-agent-tests-", ignore_cleanup_errors=True)
        self._begun = 0
        os.environ[HOME_VARIABLE] = self._shared = os.path.join(self._folder.name, "shared")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run one test in its own home."""
        self._begun += 1
        os.environ[HOME_VARIABLE] = os.path.join(self._folder.name, str(self._begun))
        try:
            return (yield)
        finally:
            os.environ[HOME_VARIABLE] = self._shared

    def pytest_unconfigure(self) -> None:
        """Remove the homes."""
        os.environ.pop(HOME_VARIABLE, None)
        self._folder.cleanup()


class Rows:
    """Counts the rows of one table over the whole run."""

    NAME = "fsm_agent_rows"

    def __init__(self, config: pytest.Config) -> None:
        from fsm_agent.testing.coverage import RowCoverage

        named = config.getoption("fsm_coverage_table") or config.getini("fsm_coverage_table") or TURN
        self._config = config
        self._coverage: RowCoverage = RowCoverage(_table(str(named), config.rootpath))
        self._files = {option: config.getoption(option) for option in OPTIONS}
        self._problems: list[str] = []
        self._coverage.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add the counts of an xdist worker that has ended; a crashed one has none."""
        self._coverage.add(getattr(node, "workeroutput", {}).get(SENT, {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the requested files; an xdist worker sends its counts instead."""
        self._coverage.stop()
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[SENT] = dict(self._coverage.counts)
            return
        for option, file in self._files.items():
            if file:
                self._write(option, Path(str(file)))
        if self._problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _write(self, option: str, file: Path) -> None:
        try:
            if option == "fsm_coverage":
                self._coverage.write(file)
            else:
                file.write_text(draw_coverage(self._coverage), encoding="utf-8")
        except OSError as error:
            self._problems.append(f"--{option.replace('_', '-')} {file} cannot be written: {error.strerror}")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print how many rows were taken, and which files could not be written."""
        terminalreporter.section("transition table")
        terminalreporter.line(self._coverage.summary())
        for problem in self._problems:
            terminalreporter.line(problem, red=True)


def draw_coverage(coverage: RowCoverage) -> str:
    """Draw a coverage: every row with its count, those never taken in red."""
    from fsm_agent.diagram import written
    from fsm_agent.diagram.counts import coverage_diagram
    from fsm_agent.diagram.layout import roomy
    from fsm_agent.diagram.model import diagram_of
    from fsm_agent.diagram.runs import Tally

    table = coverage.table
    rows = {row.id: coverage.counts[row.id] for row in table.rows}
    visits = {state: sum(rows[row.id] for row in table.rows if row.source == state) for state in table.states}
    visits[table.final] = sum(rows[row.id] for row in table.rows if row.dest == table.final)
    plain = diagram_of(table, table.layout.get("ways_out") if table.layout else None)
    picture = coverage_diagram(plain, Tally(rows, visits))
    return written(picture, "svg", roomy(table.layout, plain, picture) if table.layout else None)


def _table(named: str, root: Path | None = None) -> Table:
    """Import the table of that name, searching the project's folder too. A wrong name is a usage error: one
    line, and the run does not begin."""
    module, _, attribute = named.partition(":")
    if root is not None and str(root) not in sys.path:
        sys.path.append(str(root))
    try:
        table = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(
            f"--fsm-coverage-table {named}: {error}; allowed: MODULE:NAME of a Table"
        ) from None
    from fsm_agent.fsm.table import Table

    if not isinstance(table, Table):
        raise pytest.UsageError(
            f"--fsm-coverage-table {named}: this is not a Table but {type(table).__name__}"
        )
    return table


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that moves only when it is advanced, or when a caller sleeps on it."""
    from fsm_agent.providers.scripted import FakeClock

    return FakeClock()


@pytest.fixture
def scripted_model(fake_clock: FakeClock) -> Callable[..., ScriptedModel]:
    """``scripted_model(text("hi"), …)``: a model port on ``fake_clock`` that answers from a script."""
    from fsm_agent.providers.scripted import ScriptedModel

    return lambda *script: ScriptedModel(script, clock=fake_clock)


@pytest.fixture
def evaluate() -> Callable[..., EvalRun]:
    """``evaluate(agent, cases, ["exact", "cost"], ["exact>=0.9"])``: run an agent on all cases, and fail if a
    gate does not hold or a case has no answer."""
    from fsm_agent.evaluation import evaluate as asked

    return asked
