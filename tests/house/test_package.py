"""What importing costs, and what is public."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import fsm_agent
from fsm_agent.errors import ConfigError
from fsm_agent.support.later import Later, uncollected

HEAVY = (
    "openai",
    "anthropic",
    "typer",
    "rich",
    "prompt_toolkit",
    "httpx",
    "httpx2",
    "aiohttp",
    "uvloop",
    "transitions",
    "tenacity",
    "temporalio",
    "psycopg",
)


def modules_of(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded_by(statement: str) -> set[str]:
    return {name.split(".")[0] for name in modules_of(statement)}


def test_importing_the_package_loads_no_sdk_and_no_ui() -> None:
    assert not loaded_by("import fsm_agent") & set(HEAVY)


def test_an_agent_can_be_named_without_what_it_is_made_of() -> None:
    loaded = modules_of("from fsm_agent import Agent; Agent.chat")
    own = {name for name in loaded if name.startswith("fsm_agent")}
    others = {name.split(".")[0] for name in loaded}
    assert not others & {*HEAVY, "pydantic", "asyncio", "sqlite3", "fsm_agent_states"}
    assert len(own) < 20


def test_an_agent_loads_no_sdk_before_its_first_call() -> None:
    loaded = loaded_by("from fsm_agent import Agent; Agent('openai:m', api_key='k')")
    assert not loaded & {"openai", "anthropic", "typer", "rich", "prompt_toolkit"}


TURN = "from fsm_agent.testing import ScriptedModel, text; Agent(ScriptedModel([text('x')])).chat('go')"


def test_a_turn_loads_no_proof_but_that_it_ends() -> None:
    loaded = modules_of(f"from fsm_agent import Agent; {TURN}")
    assert "fsm_agent.fsm.verify.proof.ranking" in loaded
    assert not loaded & {
        "fsm_agent.fsm.promises",
        "fsm_agent.fsm.verify.proof.induction",
        "fsm_agent_states.logic.shapes",
    }


def test_a_turn_loads_nothing_that_it_does_not_use() -> None:
    loaded = modules_of(f"from fsm_agent import Agent; {TURN}")
    assert not {name.split(".")[0] for name in loaded} & {*HEAVY, "mcp"} - {"transitions", "uvloop"}
    assert not loaded & {
        "html.parser",
        "http.client",
        "urllib.request",
        "fsm_agent.toolsets.agent.ask",
        "fsm_agent.toolsets.agent.lookback",
        "fsm_agent.toolsets.code",
        "fsm_agent.toolsets.mcp.servers",
        "fsm_agent.toolsets.web",
    }


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


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fsm_agent, "nothing")
