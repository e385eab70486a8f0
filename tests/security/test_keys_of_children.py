"""No program that is started sees the key of a provider, whatever its variable is called."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.diagram.versions import version_of
from fsm_agent.errors import ConfigError
from fsm_agent.providers.credentials import KeyPool, hide_from_children, keyless_environment
from fsm_agent.providers.profiles import PROFILES
from fsm_agent.settings import Credential
from fsm_agent.testing import ScriptedModel, call, text, tools
from fsm_agent.toolsets.files import FileSearch
from tests.helpers.mcp_bench import program

ROOT = Path(__file__).parents[2]
CANARY = "canary-of-a-key-"
USUAL = (
    *(profile.key_env for profile in PROFILES.values() if profile.key_env),
    "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "ANTHROPIC_AUTH_TOKEN", "AZURE_OPENAI_AD_TOKEN", "XAI_API_KEY",
    "GOOGLE_API_KEY", "COHERE_APIKEY", "CLAUDE_CODE_OAUTH_TOKEN", "FSM_AGENT_ANYTHING", "mistral_api_key",
    "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
)  # fmt: skip
OWN = (
    "WORK_ACCESS", "OTHER_WORK_ACCESS", "MCP_HEADER_WORD", "MCP_ENV_WORD", "MCP_URL_WORD", "UNNAMED_BUT_USED",
    "BEARER",
)  # fmt: skip
CONFIG = """
[providers.work]
base_url = "https://llm.example.org/v1"
key_env = "WORK_ACCESS"
[providers.other]
base_url = "https://llm.example.org/v1"
key_env = "OTHER_WORK_ACCESS"
[mcp.servers.there]
url = "https://${MCP_URL_WORD}.example.org"
headers = { X-Word = "a ${MCP_HEADER_WORD}" }
enabled = true
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, beside a home whose config names variables, all of which are set."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    for name in (*USUAL, *OWN):
        monkeypatch.setenv(name, CANARY + name)
    monkeypatch.setenv("BEARER", f"Bearer {CANARY}UNNAMED_BUT_USED")
    monkeypatch.setenv("NO_KEY", "is seen")
    monkeypatch.delenv("FSM_AGENT_ANYTHING")  # no setting of ours: an agent would not start
    return tmp_path / "work"


def seen(text: str) -> list[str]:
    return [name for name in (*USUAL, *OWN) if CANARY + name in text]


def results(work: Path, *calls: Any, **options: Any) -> list[str]:
    given = {"toolsets": ["terminal", "code", "files"], "settings": {"approval": {"bypass": True}}}
    model = ScriptedModel([*(tools(one) for one in calls), text("done")])
    with Agent(model, workdir=work, home=work.parent / "home", **given | options) as agent:
        return [row["content"] for row in agent.run_conversation("go").messages if row["role"] == "tool"]


def test_no_command_sees_a_key(work: Path) -> None:
    look = "import os; print(dict(os.environ))"
    answers = results(
        work,
        call("terminal", {"command": "env; cat /proc/self/environ /proc/$PPID/environ"}),
        call("job_start", {"command": "env"}),
        call("job_wait", {"job": "job1"}),
        call("execute_code", {"code": look}),
        api_key=CANARY + "UNNAMED_BUT_USED",
        mcp={"s": program() | {"env": {"GIVEN": "${MCP_ENV_WORD}"}}, "off": {"url": "https://${MCP_URL_WORD}.org", "headers": {"x": "${MCP_HEADER_WORD}"}}},
    )  # fmt: skip
    assert "NO_KEY=is seen" in answers[0]
    assert "NO_KEY=is seen" in answers[2]
    assert seen("\n".join(answers)) == []


def test_what_the_config_file_names_is_hidden(work: Path) -> None:
    (answer,) = results(work, call("terminal", {"command": "env"}))
    assert "NO_KEY=is seen" in answer
    assert [name for name in seen(answer) if name not in ("MCP_ENV_WORD", "UNNAMED_BUT_USED", "BEARER")] == []


def test_a_server_sees_what_it_is_given(work: Path) -> None:
    """What comes back of it is masked, so it writes down what it sees."""
    code = "import json, os, sys; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"
    args = ["-c", code, str(work / "seen")]
    config = {"command": sys.executable, "args": args, "env": {"GIVEN": "${MCP_ENV_WORD}"}}
    results(work, mcp={"s": config})
    found = json.loads((work / "seen").read_text())
    assert found["GIVEN"] == CANARY + "MCP_ENV_WORD"
    assert seen(json.dumps({**found, "GIVEN": ""})) == []


def test_programs_that_search_see_nothing(work: Path) -> None:
    ripgrep = work.parent / "rg"
    ripgrep.write_text(f"#!/bin/sh\nenv > {work.parent}/seen\n")
    ripgrep.chmod(0o755)
    (work / "a.txt").write_text("needle")
    FileSearch(work, str(ripgrep)).search_files(content="needle")
    assert "PATH=" in (found := (work.parent / "seen").read_text())
    assert seen(found) == []


def test_what_git_runs_for_a_repository_sees_nothing(work: Path) -> None:
    """A filter of its configuration runs when files of a revision are written out."""
    (work / "spy").write_text(f"#!/bin/sh\nenv >> {work.parent}/seen\ncat\n")
    (work / "spy").chmod(0o755)
    (work / "a.py").write_text("TABLE = 1")
    (work / ".gitattributes").write_text("*.py filter=spy")
    git = ["git", "-C", str(work), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    spy = ["config", "filter.spy.smudge", f"{work}/spy"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], spy):
        subprocess.run([*git, *words], check=True, env=keyless_environment())
    with pytest.raises(ConfigError):
        version_of("HEAD:a.py", folder=work)
    assert "PATH=" in (found := (work.parent / "seen").read_text())
    assert seen(found) == []


def test_a_key_that_changes_is_hidden_from_the_moment_on_that_it_is_used() -> None:
    class Renewing:
        def get(self) -> str:
            return CANARY + "renewed"

        def refresh(self) -> bool:
            return True

    before = {"ANY": CANARY + "renewed", "OTHER": "other"}
    assert keyless_environment(before) == before
    assert asyncio.run(KeyPool(Renewing(), Credential()).key()) == CANARY + "renewed"
    assert keyless_environment(before) == {"OTHER": "other"}


def test_what_every_program_needs_stays() -> None:
    hide_from_children(["PATH", "HOME"], ["none", "", "/zz-not-there/bin"])
    mine = {
        "PATH": "/zz-not-there/bin", "HOME": "/zz-not-there/bin", "GITHUB_TOKEN": "t", "AWS_PROFILE": "p",
        "KEYBOARD": "none",
    }  # fmt: skip
    assert keyless_environment(mine) == mine


STARTS = {
    "create_subprocess_exec", "create_subprocess_shell", "Popen", "run", "call", "check_output", "execv",
    "system", "spawnv",
}  # fmt: skip
INSIDE = {"process_supervisor.py", "search_worker.py"}
"""Scripts of ours that run in such an environment already."""


def test_every_program_is_started_with_an_environment_that_was_made_for_it() -> None:
    """Else it would have this process's own."""
    bare, found = [], 0
    for path in (ROOT / "fsm_agent").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in (
            ast.walk(ast.parse(text)) if re.search(r"subprocess|os\.(exec|system|spawn)", text) else ()
        ):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value)
            started = node.func.attr in STARTS and owner in ("subprocess", "asyncio", "os")
            if started and ast.unparse(node.func) != "asyncio.run":
                found += 1
                if path.name not in INSIDE and all(one.arg != "env" for one in node.keywords):
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found > 7
    assert bare == []
