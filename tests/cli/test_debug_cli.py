"""``fsm-agent debug`` as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2 as httpx
import pytest

from fsm_agent.cli.entry import main
from tests.helpers.waiting import PATIENCE, until


@pytest.mark.slow
def test_it_prints_its_address_and_serves_until_interrupted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "fsm_agent.cli",
        "debug",
        "--web",
        "--port",
        "0",
        "--no-open",
        "--home",
        str(tmp_path),
    ]
    command += ["--model", "offline:demo", "--task", "what is 2 + 3?"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "error"}
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        parts = urlsplit(url)
        address = f"{parts.scheme}://{parts.netloc}{parts.path}"
        [turn], [token] = parse_qs(parts.query)["turn"], parse_qs(parts.fragment)["token"]
        headers = {"x-fsm-agent-token": token, "content-type": "application/json"}
        assert httpx.get(f"{address}api/turns/{turn}", headers=headers).json()["status"]["phase"] == "paused"
        ordered = httpx.post(f"{address}api/turns/{turn}/orders/continue", headers=headers, content=b"{}")
        assert ordered.is_success, ordered.text
        until(lambda: httpx.get(f"{address}api/turns/{turn}", headers=headers).json()["ended"], "the end")
        assert httpx.get(f"{address}api/turns/{turn}", headers=headers).json()["outcome"] == "completed"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["some-turn"], "no such turn"),
        (["--attach", "some-turn"], "no such turn"),
        (["a", "--attach", "b"], "only one turn"),
        (["--web", "--stdio"], "only one face"),
        (["--port", "70000"], "port cannot be used"),
    ],
)
def test_wrong_use_is_one_line(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "--no-open", *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
