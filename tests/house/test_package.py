"""What importing costs, and what is public."""

from __future__ import annotations

import subprocess
import sys

import fsm_agent

HEAVY = (
    "openai",
    "anthropic",
    "typer",
    "rich",
    "prompt_toolkit",
    "httpx",
    "httpx2",
    "transitions",
    "tenacity",
)


def modules_of(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded_by(statement: str) -> set[str]:
    return {name.split(".")[0] for name in modules_of(statement)}


def test_importing_the_package_loads_no_sdk_and_no_ui() -> None:
    assert not loaded_by("import fsm_agent") & set(HEAVY)


def test_an_agent_loads_no_sdk_before_its_first_call() -> None:
    loaded = loaded_by("from fsm_agent import Agent; Agent('openai:m', api_key='k')")
    assert not loaded & {"openai", "anthropic", "typer", "rich", "prompt_toolkit"}


def test_a_turn_loads_no_proof_but_that_it_ends() -> None:
    turn = "from fsm_agent.testing import ScriptedModel, text; Agent(ScriptedModel([text('x')])).chat('go')"
    loaded = modules_of(f"from fsm_agent import Agent; {turn}")
    assert "fsm_agent.fsm.verify.proof.ranking" in loaded
    assert not loaded & {
        "fsm_agent.fsm.promises",
        "fsm_agent.fsm.verify.proof.induction",
        "fsm_agent_states.logic.shapes",
    }


def test_the_public_names_are_what_all_says() -> None:
    assert fsm_agent.__all__ == sorted(fsm_agent.__all__)
    for name in fsm_agent.__all__:
        assert getattr(fsm_agent, name) is not None
    assert set(dir(fsm_agent)) == set(fsm_agent.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fsm_agent, "nothing")
