"""What importing costs, and what is public."""

from __future__ import annotations

import gc

import pytest

import fsm_agent
from fsm_agent.errors import ConfigError
from fsm_agent.support.later import Later, uncollected
from tests.helpers.processes import ran

UI = {"typer", "rich", "prompt_toolkit"}
HEAVY = {
    "openai",
    "anthropic",
    "httpx",
    "httpx2",
    "aiohttp",
    "uvloop",
    "transitions",
    "tenacity",
    "temporalio",
    "psycopg",
    *UI,
}
NAMED, TURN = "from fsm_agent import Agent; Agent.chat", "Agent(ScriptedModel([text('x')])).chat('go')"
STEPS = (
    "import fsm_agent",
    NAMED,
    f"from fsm_agent.testing import ScriptedModel, text; {TURN}",
    "Agent('openai:m', api_key='k')",
)
UNUSED = (
    "html.parser",
    "http.client",
    "urllib.request",
    "fsm_agent.toolsets.agent.ask",
    "fsm_agent.toolsets.code",
    "fsm_agent.toolsets.mcp.servers",
    "fsm_agent.toolsets.web",
)
PROOFS = {"fsm_agent.fsm.verify.properties", "fsm_agent_states.logic.shapes"}


@pytest.fixture(scope="module")
def loaded() -> list[set[str]]:
    """The modules that one process has after each of the steps."""
    code = "import sys\n" + "\n".join(f"{one}\nprint(*sys.modules)" for one in STEPS)
    done = ran("-c", code)
    return [set(line.split()) for line in done.stdout.splitlines()]


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_importing_the_package_loads_little_and_naming_an_agent_no_client(loaded: list[set[str]]) -> None:
    imported, named, *_ = loaded
    assert not packages(imported) & {*HEAVY, "pydantic", "asyncio", "sqlite3", "fsm_agent_states"}
    assert len({name for name in imported if name.startswith("fsm_agent")}) < 10
    assert not packages(named) & HEAVY - {"transitions"}


def test_a_turn_loads_nothing_that_it_does_not_use_and_no_proof_but_that_it_ends(
    loaded: list[set[str]],
) -> None:
    turn = loaded[2]
    assert not packages(turn) & {*HEAVY, "mcp"} - {"transitions", "uvloop"}
    assert not turn & {*UNUSED, *PROOFS}
    assert "fsm_agent.fsm.verify.proof" in turn


def test_an_agent_loads_no_sdk_before_its_first_call(loaded: list[set[str]]) -> None:
    assert not packages(loaded[3]) & {"openai", "anthropic", *UI}


def test_the_collector_rests_while_modules_are_loaded_and_is_left_as_it_was() -> None:
    before = gc.get_stats()[2]["collections"]
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_stats()[2]["collections"] == before
    with pytest.raises(ModuleNotFoundError):
        Later("fsm_agent.nothing").more  # noqa: B018 - asking is what loads
    assert gc.isenabled()
    assert Later("fsm_agent.errors").ConfigError is ConfigError


def test_the_public_names_are_what_all_says() -> None:
    assert fsm_agent.__all__ == sorted(fsm_agent.__all__)
    for name in fsm_agent.__all__:
        assert getattr(fsm_agent, name) is not None
    assert set(dir(fsm_agent)) == set(fsm_agent.__all__)
    assert not hasattr(fsm_agent, "nothing")
