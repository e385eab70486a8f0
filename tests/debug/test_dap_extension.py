"""The folder for VS Code says what the server takes, and has no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fsm_agent.debug.dap.console import COMMANDS
from jsonschema import Draft7Validator

from fsm_agent.debug.dap import LaunchOptions
from fsm_agent.debug.dap.breakpoints import EXCEPTIONS
from fsm_agent.debug.dap.context import NAMES

EDITORS = Path(__file__).parents[2] / "editors"
NOT_OFFERED = {"noDebug"}
"""VS Code's own: *Run without debugging*."""


@pytest.fixture
def debugger() -> dict[str, Any]:
    (found,) = json.loads((EDITORS / "vscode" / "package.json").read_text("utf-8"))["contributes"][
        "debuggers"
    ]
    return dict(found)


def test_the_folder_has_no_code() -> None:
    package = json.loads((EDITORS / "vscode" / "package.json").read_text("utf-8"))
    assert not {"main", "browser", "scripts", "dependencies", "activationEvents"} & set(package)
    assert sorted(one.name for one in (EDITORS / "vscode").iterdir()) == ["README.md", "package.json"]
    assert package["contributes"]["breakpoints"] == [{"language": "python"}]


def test_it_starts_the_command(debugger: dict[str, Any]) -> None:
    assert [debugger["runtime"], *debugger["runtimeArgs"]] == ["fsm-agent", "debug", "--stdio"]
    lua = (EDITORS / "nvim" / "fsm-agent.lua").read_text("utf-8")
    assert 'command = "fsm-agent", args = { "debug", "--stdio" }' in lua


def test_configurations_offer_what_the_server_reads(debugger: dict[str, Any]) -> None:
    launch, attach = (
        set(debugger["configurationAttributes"][how]["properties"]) for how in ("launch", "attach")
    )
    assert launch == set(NAMES) - NOT_OFFERED
    assert attach == launch - {"task", "session"}


def test_the_documentation_names_every_option_command_and_filter() -> None:
    page = (EDITORS.parent / "docs" / "debugger-editors.md").read_text("utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page and name not in NOT_OFFERED] == []
    assert [name for name in COMMANDS if f"`:{name}" not in page and name != "help"] == []
    assert [one.label for one in EXCEPTIONS if f"**{one.label[0].lower()}{one.label[1:]}**" not in page] == []


def test_the_configurations_that_it_proposes_are_valid(debugger: dict[str, Any]) -> None:
    readme = (EDITORS / "vscode" / "README.md").read_text("utf-8")
    written = json.loads(readme.partition("```json\n")[2].partition("```")[0])["configurations"]
    for one in (*debugger["initialConfigurations"], *written):
        rules = debugger["configurationAttributes"][one["request"]]
        Draft7Validator(rules | {"additionalProperties": True}).validate(one)
        assert set(one) - {"type", "request", "name"} <= set(rules["properties"])
        LaunchOptions.of(one, attach=one["request"] == "attach")
