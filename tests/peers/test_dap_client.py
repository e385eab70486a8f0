"""Microsoft's own test client drives the server over standard input and output, each message it gets is
checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.dap_editor import TABLE, line_of
from tests.helpers.dap_schema import check
from tests.helpers.processes import environment
from tests.peers.environment import PeerUnavailable, peer_package

pytestmark = pytest.mark.slow

CLIENT = ("@vscode/debugadapter-testsupport", "1.68.0")
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "scene", ["breakpoints", "conditions", "back", "change", "restart", "evaluate", "cli"]
)
def test_the_client_gets_what_it_expects(tmp_path: Path, scene: str) -> None:
    try:
        folder = peer_package(*CLIENT)
    except PeerUnavailable as why:
        pytest.skip(f"the client is not here and cannot be installed: {why}")
    node = shutil.which("node")
    assert node is not None
    begins = {"error": 'on("error", go("ClassifyError")', "tools": 'on("tools"', "built": 'on("built"'}
    lines = {name: line_of(begin) for name, begin in begins.items()}
    root = str(HERE.parents[1])
    env = environment(FSM_AGENT_HOME=str(tmp_path), FSM_AGENT_SCENE=scene, PYTHONSAFEPATH="1")
    server = [sys.executable, str(HERE / "dap_server.py"), str(TABLE), scene, json.dumps(lines)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    command = [node, str(HERE / "dap_client.cjs"), str(folder), *server]
    done = subprocess.run(command, env=env, cwd=root, **options)
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(messages) > 8
    for message in messages:
        check(message)
