"""A page of the web is read by the model for it, in a child turn, and only the answer comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult
from fsm_agent.errors import ConfigError
from fsm_agent.providers.config_file import checked_config
from fsm_agent.testing import ScriptedServer, call, status, text, tools
from tests.helpers.web_server import html, site

PAGE = "<html><title>Tea</title><body><main><p>Green tea is steeped at 80 degrees.</p></main></body></html>"
QUESTION = "How hot is the water for green tea?"


@contextmanager
def asked(
    home: Path, small: Sequence[Any], main: Sequence[Any] = (), **options: Any
) -> Iterator[tuple[TurnResult, ScriptedServer, ScriptedServer]]:
    """A turn that asks about a page; the servers of the model for pages, and of the main one."""
    with site({"/tea": html(PAGE)}) as web, ScriptedServer(list(small)) as smaller:
        first = tools(call("ask_page", {"url": web.url("/tea"), "question": QUESTION}))
        with ScriptedServer([first, *main, text("done")]) as larger:
            agent = Agent(
                "openai:gpt-x", base_url=larger.url, api_key="k", home=home, toolsets=["ask"],
                auxiliary={"web": {"model": "openai:gpt-mini", "base_url": smaller.url, "api_key": "k"}},
                settings={"web": {"allow_private_hosts": ["127.0.0.1"]}, "api_max_retries": 1, **options},
            )  # fmt: skip
            result = agent.run_conversation("ask it")
            agent.close()
            yield result, smaller, larger


def told(result: TurnResult) -> str:
    return next(str(row["content"]) for row in result.messages if row["role"] == "tool")


@pytest.mark.behaviour("FB-07c")
def test_the_model_for_pages_reads_the_page_and_the_answer_comes_back(tmp_path: Path) -> None:
    with asked(tmp_path, [text("At 80 degrees.")]) as (result, smaller, larger):
        assert "At 80 degrees." in told(result)
        assert "is steeped" not in str(larger.bodies[-1]["messages"]), "the page is not in the conversation"
        [body] = smaller.bodies
        assert body["model"] == "gpt-mini"
        assert "tools" not in body
        said = str(body["messages"][-1]["content"])
        assert QUESTION in said
        assert "is steeped at 80 degrees" in said
        [child] = result.children
        assert (child.attempts, result.attempts) == (1, 2), "its request is a row's spending, told apart"
        assert child.outcome == "completed"


def test_the_main_model_answers_when_the_one_for_pages_fails(tmp_path: Path) -> None:
    with asked(tmp_path, [status(404)], [text("80, I think")]) as (result, smaller, larger):
        assert "80, I think" in told(result)
        assert [server.completions for server in (smaller, larger)] == [1, 3]
        assert result.children[0].attempts == 2
    # its requests are under the cap of the tree
    few: dict[str, Any] = {"delegation": {"max_attempts_per_tree": 1}}
    with asked(tmp_path, [text("never")], **few) as (result, smaller, _):
        assert smaller.completions == 0
        assert result.turn_exit_reason.value == "attempt_cap_reached"


@pytest.mark.parametrize("given", [{"speech": "openai:x"}, {"web": [], "music": []}])
def test_a_task_that_nothing_asks_for_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"auxiliary names an unknown task.*summary, web, vision, title"):
        Agent("offline:demo", auxiliary=given)


def test_the_config_file_has_lists_by_task(tmp_path: Path) -> None:
    given = {"auxiliary": {"web": ["openai:gpt-mini"], "summary": [{"model": "local:phi"}]}}
    found = checked_config(tmp_path / "config.toml", given).auxiliary
    assert found == {"web": ({"model": "openai:gpt-mini"},), "summary": ({"model": "local:phi"},)}
    with pytest.raises(ConfigError, match="web has the wrong type"):
        checked_config(tmp_path / "config.toml", {"auxiliary": {"web": 3}})
