"""The model for pages or images looks at one, in a child turn, and only the answer comes back."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, ImagePart, TurnResult
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import check_config
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.conversation.test_parts import png
from tests.helpers.families import told
from tests.helpers.web_server import Site, html

PAGE = "<html><title>Tea</title><body><main><p>Green tea is steeped at 80 degrees.</p></main></body></html>"
QUESTION = "How hot is the water for green tea?"
Asked = tuple[TurnResult, ScriptedServer, ScriptedServer]


@contextmanager
def asked(
    task: str, first: Any, small: Sequence[Any], main: Sequence[Any] = (), message: Any = "go", **options: Any
) -> Iterator[Asked]:
    """A turn that begins with this reply; the servers of the model for a task, and of the main one."""
    settings = {"web": {"allow_private_hosts": ["127.0.0.1"]}, "api_max_retries": 1} | options.pop(
        "settings", {}
    )
    model = options.pop("model", "openai:gpt-4o")
    with ScriptedServer(list(small)) as smaller, ScriptedServer([first, *main, text("done")]) as larger:
        entry = {"model": "openai:gpt-4o-mini", "base_url": smaller.url, "api_key": "k"}
        given = {"toolsets": ["ask", "vision"], "auxiliary": {task: entry}, "settings": settings, **options}
        agent = Agent(model, base_url=larger.url, api_key="k", **given)
        result = agent.run_conversation(message)
        agent.close()
        yield result, smaller, larger


@contextmanager
def asked_of_page(small: Sequence[Any], main: Sequence[Any] = (), **options: Any) -> Iterator[Asked]:
    with Site({"/tea": html(PAGE)}) as web:
        first = tools(call("ask_page", {"url": web.url("/tea"), "question": QUESTION}))
        with asked("web", first, small, main, **options) as found:
            yield found


def asked_of_image(folder: Path, name: str, small: list[Any], message: Any = "look", **options: Any) -> Any:
    first = tools(call("ask_image", {"image": name, "question": "What color is it?"}))
    return asked("vision", first, small, message=message, workdir=folder, **options)


@pytest.mark.behaviour("FB-07c")
def test_the_model_for_pages_reads_the_page_and_the_answer_comes_back() -> None:
    with asked_of_page([text("At 80 degrees.")]) as (result, smaller, larger):
        assert "At 80 degrees." in told(result)[0]
        assert "is steeped" not in str(larger.bodies[-1]["messages"]), "the page is not in the conversation"
        [body] = smaller.bodies
        assert body["model"] == "gpt-4o-mini"
        assert "tools" not in body
        said = str(body["messages"][-1]["content"])
        assert QUESTION in said
        assert "is steeped at 80 degrees" in said
        [child] = result.children
        assert (child.attempts, result.attempts) == (1, 2), "its request is a row's spending, told apart"
        assert child.outcome == "completed"


def test_the_main_model_answers_when_the_one_for_pages_fails() -> None:
    with asked_of_page([status(404)], [text("80, I think")]) as (result, smaller, larger):
        assert "80, I think" in told(result)[0]
        assert [server.completions for server in (smaller, larger)] == [1, 3]
        assert result.children[0].attempts == 2
    # its requests are under the cap of the tree
    few = {"delegation": {"max_attempts_per_tree": 1}}
    with asked_of_page([text("never")], settings=few) as (result, smaller, _):
        assert smaller.completions == 0
        assert result.turn_exit_reason.value == "attempt_cap_reached"


@pytest.mark.behaviour("FB-07b", "FB-07d")
def test_the_model_for_images_sees_the_file_and_the_answer_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    with asked_of_image(tmp_path, "a.png", [text("Black.")]) as (result, smaller, larger):
        assert "Black." in told(result)[0]
        [body] = smaller.bodies
        assert body["model"] == "gpt-4o-mini"
        assert "tools" not in body
        words, image = body["messages"][-1]["content"]
        assert words["text"] == "What color is it?"
        assert image["image_url"]["url"].endswith(base64.b64encode(png()).decode())
        assert "base64" not in str(larger.bodies[-1]["messages"]), "the image is not in the conversation"
        [child] = result.children
        assert (child.attempts, result.attempts) == (1, 2)
    # a model that reads no images is not asked in its place
    with asked_of_image(tmp_path, "a.png", [status(404)]) as (result, smaller, larger):
        assert "No model answered" in told(result)[0]
        assert (smaller.completions, larger.completions) == (1, 2)


@pytest.mark.parametrize("name", ["", "photo", f"[image photo (image/png, {len(png())} bytes)]"])
def test_an_image_of_the_conversation_is_asked_about_by_its_name(tmp_path: Path, name: str) -> None:
    message = [ImagePart(png(3, 3), name="other"), ImagePart(png(), name="photo"), "look"]
    with asked_of_image(tmp_path, name, [text("Black.")], message) as (result, smaller, _):
        assert "Black." in told(result)[0]
        image = smaller.bodies[0]["messages"][-1]["content"][1]["image_url"]["url"]
        assert image.endswith(base64.b64encode(png()).decode())


def test_a_message_may_have_an_image_that_only_the_other_model_reads(tmp_path: Path) -> None:
    message, blind = [ImagePart(png(), name="photo"), "look"], "deepseek:deepseek-chat"
    with asked_of_image(tmp_path, "photo", [text("Black.")], message, model=blind) as (result, _, larger):
        assert "Black." in told(result)[0]
        sent = str(larger.bodies[0]["messages"])
        assert "[image photo (image/png" in sent
        assert "base64" not in sent


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "There is no image in this conversation"), ("../a.png", "outside the working directory"),
        ("b.png", "no such file"), ("text.txt", "not an image"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_said_and_nobody_is_asked(tmp_path: Path, name: str, why: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "a.png").write_bytes(png())
    (folder / "text.txt").write_text("words")
    with asked_of_image(folder, name, []) as (result, smaller, _):
        assert why in told(result)[0]
        assert smaller.completions == 0


def test_tasks_in_the_config_file_and_those_that_nothing_asks_for(tmp_path: Path) -> None:
    unknown = r"auxiliary names an unknown task.*summary, web, vision, title"
    for wrong in ({"speech": "openai:x"}, {"web": [], "music": []}):
        with pytest.raises(ConfigError, match=unknown):
            Agent("offline:demo", auxiliary=wrong)
    given = {"auxiliary": {"web": ["openai:gpt-mini"], "summary": [{"model": "local:phi"}]}}
    found = check_config(tmp_path / "config.toml", given).auxiliary
    assert found == {"web": ({"model": "openai:gpt-mini"},), "summary": ({"model": "local:phi"},)}
    with pytest.raises(ConfigError, match="web has the wrong type"):
        check_config(tmp_path / "config.toml", {"auxiliary": {"web": 3}})
