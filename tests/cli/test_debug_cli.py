"""``fsm-agent debug`` as a program."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2 as httpx
import pytest

from examples.order import workflow as order_flow
from tests.helpers.processes import environment
from tests.helpers.waiting import PATIENCE, until


@contextmanager
def served(home: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str, str, dict[str, str]]]:
    """The command as a process, the address of its page, its turn, and the headers of a request."""
    command = [sys.executable, "-m", "fsm_agent", "debug", *words, "--web", "--port", "0", "--no-open"]
    env = environment(PYTHONWARNINGS="error")
    command += ["--home", str(home)]
    with (
        (home / "errors").open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env, cwd=home
        ) as process,
    ):
        assert process.stdout is not None
        parts = urlsplit(process.stdout.readline().strip())
        [turn], [token] = parse_qs(parts.query)["turn"], parse_qs(parts.fragment)["token"]
        address = f"{parts.scheme}://{parts.netloc}{parts.path}"
        try:
            yield process, address, turn, {"x-fsm-agent-token": token, "content-type": "application/json"}
        finally:
            process.kill()


@pytest.mark.slow
def test_it_prints_its_address_and_serves_until_interrupted(tmp_path: Path) -> None:
    words = ("--model", "offline:demo", "--task", "what is 2 + 3?")
    with served(tmp_path, *words) as (process, address, turn, headers):
        assert address.startswith("http://127.0.0.1:")
        where = f"{address}api/turns/{turn}"
        assert httpx.get(where, headers=headers).json()["status"]["phase"] == "paused"
        ordered = httpx.post(f"{where}/orders/continue", headers=headers, content=b"{}")
        assert ordered.is_success, ordered.text
        until(lambda: httpx.get(where, headers=headers).json()["ended"], "the end")
        assert httpx.get(where, headers=headers).json()["outcome"] == "completed"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


@pytest.mark.slow
def test_it_is_interrupted_without_complaint_while_a_page_is_open(tmp_path: Path) -> None:
    words = ("--model", "offline:demo", "--task", "hello")
    with (
        served(tmp_path, *words) as (process, address, turn, headers),
        httpx.stream("GET", f"{address}api/turns/{turn}/events", headers=headers) as stream,
    ):
        assert "hello" in next(stream.iter_lines())
        assert httpx.get(f"{address}api/turns/{turn}", headers=headers).is_success
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.slow
def test_the_command_opens_a_table_of_ones_own(tmp_path: Path) -> None:
    for name, state in (("examples.review_loop:workflow", "Draft"), ("examples.order:TABLE", "Reserve")):
        with served(tmp_path, name) as (_, address, turn, headers):
            hello = httpx.get(f"{address}api/hello", headers=headers).json()
            assert (hello["states"][0], hello["talks"]) == (state, False)
            assert f'id="state-{state}"' in hello["map"]
            assert httpx.get(f"{address}api/turns/{turn}", headers=headers).json()["status"]["state"] == state
    kept = {info.table_name for info in order_flow(tmp_path).journal.recent()}
    assert kept == {"order", "review"}, "the store of the home has them all"
