"""Official clients against a server of its own process: both SDKs of OpenAI, and ``llm``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.helpers.page_blocks import PageBlocks
from tests.helpers.waiting import until
from tests.peers.environment import PeerUnavailable, peer_package, peer_python
from tests.serve.openai_app import OSLO, City
from tests.serve.processes import ServerProcess

pytestmark = pytest.mark.slow
SDK, LLM = ("openai", "7.57.0"), ("llm", "0.36")
APP = "tests.serve.openai_app:make_agent"
WORDS = "Let me add.\n\nIt is 3."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    world = tmp_path_factory.mktemp("world")
    with ServerProcess(world, world / "home", "--app", APP) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0) as made:
        yield made


def or_skip(installed: Callable[[], Path]) -> Path:
    try:
        return installed()
    except PeerUnavailable as why:
        pytest.skip(f"the client is not here and cannot be installed: {why}")


# The SDK for Python


def test_a_stream_that_is_dropped_is_taken_up_behind_the_last_event(client: openai.OpenAI) -> None:
    whole = list(client.responses.create(model="agent", input="1+2", stream=True))
    stream = client.responses.create(model="agent", input="1+2", stream=True)
    had = [next(stream) for _ in range(7)]
    stream.close()
    rest = client.responses.retrieve(had[0].response.id, stream=True, starting_after=6)  # type: ignore[union-attr]
    assert [one.type for one in [*had, *rest]] == [one.type for one in whole]


def test_after_kill_9_a_client_is_told_all_again_and_the_question_still_waits(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(tmp_path, home, "--app", APP) as first:
        client = openai.OpenAI(base_url=f"{first.url}/v1", api_key=first.token, max_retries=0)
        told = list(client.responses.create(model="agent", input="Pay 7", stream=True))
    with ServerProcess(tmp_path, home, "--app", APP) as second:
        client = openai.OpenAI(base_url=f"{second.url}/v1", api_key=second.token, max_retries=0)
        waits = client.responses.retrieve(told[0].response.id)  # type: ignore[union-attr]
        assert (waits.status, waits.output_text) == ("incomplete", "I pay.\n\n")
        again = list(client.responses.retrieve(waits.id, stream=True, starting_after=3))
        assert (again[0].type, again[0].sequence_number) == ("response.created", 0)
        asked: Any = waits.output[-1]
        answer: Any = [{"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}]
        paid = client.responses.create(model="agent", input=answer, previous_response_id=waits.id)
    assert (paid.status, paid.output_text) == ("completed", "I pay.\n\nIt is paid.")


def test_after_kill_9_in_mid_turn_the_turn_goes_on_and_a_client_that_comes_back_gets_all_of_it(
    tmp_path: Path,
) -> None:
    home, told = tmp_path / "home", list[Any]()
    with ServerProcess(tmp_path, home, "--app", APP) as first:
        client = openai.OpenAI(base_url=f"{first.url}/v1", api_key=first.token, max_retries=0)
        for event in client.responses.create(model="agent", input="Hold", stream=True):
            told.append(event)
            if event.type == "response.mcp_call.in_progress":
                until(lambda: (tmp_path / "held").exists(), "the tool")
                break
        first.kill()
    (tmp_path / "go").touch()
    with ServerProcess(tmp_path, home, "--app", APP) as second:
        client = openai.OpenAI(base_url=f"{second.url}/v1", api_key=second.token, max_retries=0)
        rest = client.responses.retrieve(
            told[0].response.id, stream=True, starting_after=told[-1].sequence_number
        )
        *_, last = again = list(rest)
    assert (again[0].type, again[0].sequence_number) == ("response.created", 0)
    assert last.type == "response.completed"
    assert last.response.output_text == "I wait.\n\nIt is done."
    assert [item.type for item in last.response.output] == ["message", "mcp_call", "message"]


def test_the_blocks_of_the_guide_run(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", server.token)
    page = Path(__file__).parents[2] / "docs/serve-openai.md"
    blocks = PageBlocks(page, tmp_path / "work", commands=False)
    assert blocks.run().count("python") == 8
    assert (blocks.namespace["paid"].status, blocks.namespace["parsed"].output_parsed.name) == (
        "completed",
        "Oslo",
    )


# The SDK for JavaScript


def test_the_javascript_sdk_speaks_both_wires(server: ServerProcess) -> None:
    folder = or_skip(lambda: peer_package(*SDK))
    node = shutil.which("node")
    assert node is not None
    script = Path(__file__).with_name("openai_client.mjs")
    command = [node, str(script), str(folder), f"{server.url}/v1", server.token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["models"] == ["agent"]
    assert got["whole"] == {"text": WORDS, "items": ["message", "mcp_call", "message"], "status": "completed"}
    assert got["next"] == {"text": "message 2", "same": True}
    assert (got["streamed"]["deltas"], got["streamed"]["final"]) == (WORDS, WORDS)
    assert got["back"] == got["streamed"]["types"][6:]
    assert got["typed"] == got["parsed"] == OSLO.model_dump()
    assert got["waits"] == {"status": "incomplete", "tool": "pay"}
    assert got["paid"] == {"status": "completed", "text": "I pay.\n\nIt is paid.", "same": True}
    assert got["completion"] == {"text": "It is 3.", "total": 30}
    assert got["chat"] == {"text": WORDS, "total": 30}
    assert got["refused"] == [
        ["NotFoundError", 404, "model_not_found"], ["NotFoundError", 404, "not_found"],
        ["BadRequestError", 400, "unsupported_parameter"], ["AuthenticationError", 401, "unauthorized"],
    ]  # fmt: skip


# llm, the command line


@pytest.fixture
def llm(server: ServerProcess, tmp_path: Path) -> Callable[..., str]:
    """The command with two models, one for each wire."""
    python = or_skip(lambda: peer_python(*LLM))
    models = [
        {"model_id": name, "model_name": "agent", "api_base": f"{server.url}/v1", "api_key_name": "fsm",
         "supports_schema": True, **more}
        for name, more in (("fsm-chat", {}), ("fsm-responses", {"responses": True}))
    ]  # fmt: skip
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (tmp_path / "keys.json").write_text(json.dumps({"fsm": server.token}))
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENAI_", "LLM_"))
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [str(python), "-m", "llm", *words], env={**kept, "LLM_USER_PATH": str(tmp_path)},
            capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.parametrize("model", ["fsm-chat", "fsm-responses"])
def test_llm_speaks_both_wires(llm: Callable[..., str], model: str) -> None:
    assert llm("-m", model, "1+2") == WORDS
    assert llm("-m", model, "--no-stream", "1+2").endswith("It is 3.")
    assert llm("-m", model, "hello", "-s", "Be short.") == "message 1"
    assert llm("-c", "and?") == "message 2"
    assert City.model_validate_json(llm("-m", model, "--schema", "name, people int", "a city")) == OSLO


def test_llm_says_what_a_turn_waits_for(llm: Callable[..., str], client: openai.OpenAI) -> None:
    said = llm("-m", "fsm-chat", "Pay 7")
    assert said.startswith("I pay.\n\n[The turn waits for approval of pay (p-")
