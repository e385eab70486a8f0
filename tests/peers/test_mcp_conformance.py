"""The conformance suite of the Model Context Protocol against our server and our client.

Every scenario of the suite runs, each of the client's at one commit in four. Those in the tables below fail, each for
the reason beside it; a test fails when one of them passes, and when another one does not."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import environment
from tests.helpers.sample import sampled
from tests.peers.environment import PeerProcess, peer_package

pytestmark = pytest.mark.slow

VERSION, NODE = "0.1.16", "22.23.3"
SECONDS = 240

ENVIRONMENT = environment(PYTHON_KEYRING_BACKEND="keyring.backends.fail.Keyring")
"""The keyring of the machine that runs the tests is left alone."""

_PROMPTS = "the prompts of our server are skills of the agent, and none of them is one of the suite's"
_RESOURCES = "the resources of our server are sessions, and none of them is at an address of the suite"
_FORMS = "our server asks for approvals and answers in forms of its own; tools have no others"
SERVER_EXCEPTIONS = {
    "logging-set-level": "our server sends no log messages: its log may hold what a client may not see",
    "tools-call-with-logging": "the same",
    "completion-complete": "there are no prompts and resources whose arguments could be completed",
    "tools-call-sampling": "the agent uses its own models, never those of a client",
    "server-sse-polling": (
        "a warning: it reads with the version 2025-03-26, whose streams the SDK begins without an empty event; those of"
        " 2025-11-25 have one (tests/serve/test_mcp_processes.py)"
    ),
    "elicitation-sep1034-defaults": _FORMS,
    "elicitation-sep1330-enums": _FORMS,
    **dict.fromkeys(
        ("resources-read-text", "resources-read-binary", "resources-templates-read",
         "resources-subscribe", "resources-unsubscribe"),
        _RESOURCES,
    ),
    **dict.fromkeys(
        ("prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource",
         "prompts-get-with-image"),
        _PROMPTS,
    ),
}  # fmt: skip


CLIENT_EXCEPTIONS = {
    "auth/scope-step-up": "a turn begins no login: a call that wants a wider one fails and says so",
    "auth/2025-03-26-oauth-metadata-backcompat": (
        "the SDK holds a server to the issuer that it names (RFC 8414); that of the scenario names another"
    ),
    "auth/cross-app-access-complete-flow": "a login without a person is never one by a token of another issuer",
}
CLIENT_SCENARIOS = (
    "initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "auth/metadata-default",
    "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3", "auth/basic-cimd",
    "auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported", "auth/scope-omitted-when-undefined",
    "auth/scope-step-up", "auth/scope-retry-limit", "auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none", "auth/pre-registration", "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/2025-03-26-oauth-endpoint-fallback", "auth/resource-mismatch", "auth/offline-access-scope",
    "auth/offline-access-not-supported", "auth/client-credentials-jwt", "auth/client-credentials-basic",
    "auth/cross-app-access-complete-flow",
)  # fmt: skip


def node() -> Path:
    """A Node that the suite runs on: this machine's, or one from npm."""
    own = shutil.which("node")
    if own is not None:
        said = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout
        if int(said.lstrip("v").partition(".")[0]) >= 22:
            return Path(own)
    system = {"Darwin": "darwin", "Windows": "win"}.get(platform.system(), "linux")
    machine = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(
        platform.machine(), platform.machine()
    )
    return peer_package(f"node-{system}-{machine}", NODE) / "bin" / "node"


def program() -> Path:
    return peer_package("@modelcontextprotocol/conformance", VERSION) / "dist" / "index.js"


def suite(place: Path, mode: str, exceptions: dict[str, str], *words: str) -> tuple[int, str]:
    """Run the scenarios of a mode; its exit code, and what it said."""
    expected = place / "expected.yml"
    expected.write_text(json.dumps({mode: sorted(exceptions)}))  # which is YAML, too
    command = [node(), program(), mode, *words, "--expected-failures", expected, "-o", place / "results"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT, cwd=place, check=False
    )
    return done.returncode, done.stdout[-6_000:] + done.stderr[-2_000:]


def test_our_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.peers.mcp_conformance_server", tmp_path / "home"]
    env = environment(FSM_AGENT_HOME=str(tmp_path / "home"))
    with PeerProcess("our server", command, ("FSM_AGENT",), **env) as server:
        code, said = suite(
            tmp_path, "server", SERVER_EXCEPTIONS, "--url", f"{server.root}/mcp", "--suite", "all"
        )
    assert code == 0, said


def test_the_table_names_every_scenario_of_the_client() -> None:
    said = subprocess.run([node(), program(), "list"], capture_output=True, text=True, check=True).stdout
    listed = said.partition("Client scenarios")[2].splitlines()
    assert [row.split()[1] for row in listed if row.startswith("  - ")] == [*CLIENT_SCENARIOS]
    assert CLIENT_EXCEPTIONS.keys() <= {*CLIENT_SCENARIOS}


@pytest.mark.parametrize("scenario", sampled(CLIENT_SCENARIOS, "scenarios of MCP clients"))
def test_our_client(scenario: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m tests.peers.mcp_conformance_client"
    code, said = suite(tmp_path, "client", {}, "--command", command, "--scenario", scenario)
    assert (code != 0) == (scenario in CLIENT_EXCEPTIONS), said
