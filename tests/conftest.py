"""Fixtures that every test may use.

``home`` is the folder of this test's sessions, ``store`` the store in it, ``agent`` and ``named`` make agents with a
scripted model, ``cli`` runs a command. A turn over HTTP, with the assertions that hold of every turn, is played by
``tests.helpers.harness.play``.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from fsm_agent.providers.choose import GUESSES, choose
from tests.helpers.command_line import Cli
from tests.helpers.request_books import Books
from tests.helpers.sample import most

if TYPE_CHECKING:
    from fsm_agent import Agent
    from fsm_agent.sessions.store import Store
    from tests.helpers.harness import MakeAgent

# Hypothesis judges a test by the clock on the wall, which says more about what else the machine does. Where the
# environment has CI, it would also try the same examples at every commit: hence its usual profile by name.
settings.register_profile(
    "brief",
    settings.get_profile("default"),
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("at length", settings.get_profile("brief"), max_examples=most(400))
settings.load_profile("brief")
"""``make test`` tries few examples of each property, ``make test-slow`` a hundred, ``make test-all`` 400."""
BOOKS = Books()
"""Compare the books of every turn that a test of this process runs."""
MADE_UP = choose("openai:gpt-x", api_key="k").guess
"""The warning about the made-up model that most tests use. It is not what they test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database", choices=("sqlite", "postgres"), default="sqlite", help="where stores are kept"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL, what is about a SQLite file alone is left out."""
    if config.getoption("--database") != "postgres":
        return
    from tests.helpers.on_postgres import is_of_a_file_alone

    left_out = [item for item in items if is_of_a_file_alone(item.nodeid)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_sessionstart(session: pytest.Session) -> None:
    if session.config.getoption("--database") == "postgres":
        from tests.helpers.on_postgres import at, keep_all_there

        at()
        keep_all_there()


def pytest_sessionfinish() -> None:
    if (module := sys.modules.get("tests.helpers.on_postgres")) is not None:
        module.stop()


def pytest_collection_finish() -> None:
    """What was imported stays to the end. Walking it again and again took the garbage collector a fifth of
    all tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An ``async`` test runs in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What ``pytest.mark.anyio`` runs a test with, and the fixtures that it shares a task with."""
    return "asyncio"


OF_THE_USER = (
    "OPENAI_API_KEY", "OPENROUTER_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "FSM_AGENT_MODEL",
)  # fmt: skip
NUMBERS = itertools.count(1)


@pytest.fixture(autouse=True)
def own_home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every test has a home of its own and none of the user's keys."""
    if "tmp_path" in request.fixturenames:
        folder: Path = request.getfixturevalue("tmp_path")
    else:  # a folder that is made by the first who writes into it: making one takes as long as a short test
        folder = tmp_path_factory.getbasetemp() / f"unnamed-{next(NUMBERS)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FSM_AGENT_HOME", str(folder / "home"))
        if request.config.getoption("--database") == "postgres":
            from tests.helpers.on_postgres import url_of

            patch.setenv("FSM_AGENT_STORE__DATABASE_URL", url_of(folder / "home"))
        for name in OF_THE_USER:
            patch.delenv(name, raising=False)
        GUESSES.clear()
        GUESSES.add(MADE_UP)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder in which this test's agents and commands keep their sessions."""
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """The store of ``home``."""
    from fsm_agent.sessions.store import Store

    opened = Store(home)
    yield opened
    opened.close()


@pytest.fixture
def agent(home: Path, request: pytest.FixtureRequest) -> Iterator[MakeAgent]:
    """Make an agent whose model gives these replies: ``agent(tools(call("look", {})), text("done"), tools=[look])``.

    It has a fake clock and keeps its sessions in ``home``; options are those of ``Agent``, and ``model=`` replaces
    the script. A file with ``pytestmark = pytest.mark.agent(toolsets=[])`` has these options in all its agents.
    They are closed when the test ends."""
    from fsm_agent import Agent
    from fsm_agent.testing import FakeClock, ScriptedModel

    marker = request.node.get_closest_marker("agent")
    usual = marker.kwargs if marker else {}
    made: list[Agent] = []

    def make(*script: Any, **options: Any) -> Agent:
        given = {"home": home, "clock": FakeClock(), **usual, **options}
        made.append(Agent(given.pop("model", None) or ScriptedModel(script), **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def named(agent: MakeAgent) -> MakeAgent:
    """Make an agent that its prompt calls by its name: ``named("billing", text("Paid."))``."""

    def make(name: str, *script: Any, **options: Any) -> Agent:
        return agent(*script, name=name, **{"toolsets": [], "system_prompt": f"You are {name}.", **options})

    return make


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process; gives the exit code, standard output and standard error."""
    return Cli(capsys)
