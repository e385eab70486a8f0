"""An image is looked at by the model for it, in a child turn, and only the answer comes back."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, ImagePart, TurnResult
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.conversation.test_parts import png

QUESTION = "What colour is it?"


@contextmanager
def asked(
    folder: Path, name: str, small: list[Any], message: Any = "look", model: str = "openai:gpt-4o"
) -> Iterator[tuple[TurnResult, ScriptedServer, ScriptedServer]]:
    """A turn that asks about an image; the servers of the model for images, and of the main one."""
    with ScriptedServer(small) as smaller:
        first = tools(call("ask_image", {"image": name, "question": QUESTION}))
        with ScriptedServer([first, text("done")]) as larger:
            agent = Agent(
                model, base_url=larger.url, api_key="k", home=folder / "home", toolsets=["vision"],
                workdir=folder, settings={"api_max_retries": 1},
                auxiliary={"vision": {"model": "openai:gpt-4o-mini", "base_url": smaller.url, "api_key": "k"}},
            )  # fmt: skip
            result = agent.run_conversation(message)
            agent.close()
            yield result, smaller, larger


def told(result: TurnResult) -> str:
    return next(str(row["content"]) for row in result.messages if row["role"] == "tool")


@pytest.mark.behaviour("FB-07b", "FB-07d")
def test_the_model_for_images_sees_the_file_and_the_answer_comes_back(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    with asked(tmp_path, "a.png", [text("Black.")]) as (result, smaller, larger):
        assert "Black." in told(result)
        [body] = smaller.bodies
        assert body["model"] == "gpt-4o-mini"
        assert "tools" not in body
        words, image = body["messages"][-1]["content"]
        assert words["text"] == QUESTION
        assert image["image_url"]["url"].endswith(base64.b64encode(png()).decode())
        assert "base64" not in str(larger.bodies[-1]["messages"]), "the image is not in the conversation"
        [child] = result.children
        assert (child.attempts, result.attempts) == (1, 2)


@pytest.mark.parametrize("name", ["", "photo", f"[image photo (image/png, {len(png())} bytes)]"])
def test_an_image_of_the_conversation_is_asked_about_by_its_name(tmp_path: Path, name: str) -> None:
    message = [ImagePart(png(3, 3), name="other"), ImagePart(png(), name="photo"), "look"]
    with asked(tmp_path, name, [text("Black.")], message) as (result, smaller, _):
        assert "Black." in told(result)
        assert smaller.bodies[0]["messages"][-1]["content"][1]["image_url"]["url"].endswith(
            base64.b64encode(png()).decode()
        )


def test_a_message_may_have_an_image_that_only_the_other_model_reads(tmp_path: Path) -> None:
    message = [ImagePart(png(), name="photo"), "look"]
    with asked(tmp_path, "photo", [text("Black.")], message, model="deepseek:deepseek-chat") as (
        result,
        _,
        larger,
    ):
        assert "Black." in told(result)
        sent = str(larger.bodies[0]["messages"])
        assert "[image photo (image/png" in sent
        assert "base64" not in sent


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "There is no image in this conversation"),
        ("../a.png", "outside the working directory"),
        ("b.png", "no such file"),
        ("text.txt", "no image"),
    ],
)
def test_what_is_no_image_is_said_and_nobody_is_asked(tmp_path: Path, name: str, why: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "a.png").write_bytes(png())
    (folder / "text.txt").write_text("words")
    with asked(folder, name, []) as (result, smaller, _):
        assert why in told(result)
        assert smaller.completions == 0


def test_a_model_that_reads_no_images_is_not_asked_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    with asked(tmp_path, "a.png", [status(404)]) as (result, smaller, larger):
        assert "No model answered" in told(result)
        assert (smaller.completions, larger.completions) == (1, 2)
