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


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_no_sdk_and_no_ui() -> None:
    assert not loaded_by("import fsm_agent") & set(HEAVY)


def test_an_agent_loads_no_sdk_before_its_first_call() -> None:
    loaded = loaded_by("from fsm_agent import Agent; Agent('openai:m', api_key='k')")
    assert not loaded & {"openai", "anthropic", "typer", "rich", "prompt_toolkit"}


def test_the_public_names_are_what_all_says() -> None:
    assert fsm_agent.__all__ == sorted(fsm_agent.__all__)
    for name in fsm_agent.__all__:
        assert getattr(fsm_agent, name) is not None
    assert set(dir(fsm_agent)) == set(fsm_agent.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fsm_agent, "nothing")
