"""What refusals teach of a model stays learned: in the next turn, session and process, for some days."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent import Agent
from fsm_agent.conversation.effects import CloseTurn, Lesson, Runtime
from fsm_agent.providers.catalog import BOUNDS, LEARNED, SWITCHES, LearnedFacts
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_session
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.testing import ScriptedServer, repeat, status, text
from tests.helpers.picky_server import Picky, picky
from tests.helpers.processes import environment, printed, ran
from tests.helpers.store_homes import left_unfinished

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LOOK = [{"type": "text", "text": "what is this?"}, IMAGE]
URL = "http://127.0.0.1:9/v1"


def agent(server: Picky, home: Path, **options: Any) -> Agent:
    model = options.pop("model", "local:m")
    return Agent(model, base_url=server.url, api_key="k", toolsets=[], home=home, **options)


def ask(server: Picky, home: Path, message: Any = "go", **options: Any) -> Any:
    """One turn of a session and an agent of its own; requests that it took."""
    before, one = server.requests, agent(server, home, **options)
    try:
        result = one.run_conversation(message)
    finally:
        one.close()
    assert result.completed, result.error
    return server.requests - before


def facts(home: Path, days: float = 7, now: float | None = None) -> LearnedFacts:
    learned = LearnedFacts(home, days, lambda: time.time() if now is None else now)
    learned.refresh()
    return learned


def runtime(**known: Any) -> Runtime:
    return Runtime("local", "m", URL, **known)


@pytest.mark.behaviour("COMP-41")
def test_a_window_that_a_refusal_names_is_known_to_the_next_turns(tmp_path: Path) -> None:
    with picky(window=8_192) as server:
        one = agent(server, tmp_path, settings={"backoff": {"jitter": 0, "exception": {"base": 0, "cap": 0}}})
        for number in range(9):
            one = one if number % 3 else agent(server, tmp_path, session_id=one.session_id)
            assert one.run_conversation(f"{number} {'words and words ' * 500}").completed
        one.close()
        assert len(server.refused) == 1


@pytest.mark.behaviour("BUILD-18")
@pytest.mark.parametrize(
    ("takes", "message", "options"),
    [
        ({"images": False}, LOOK, {}),
        ({"streams": False}, "go", {}),
        ({"output": 4_096}, "go", {"settings": {"max_output_tokens": 9_000}}),
        ({"unknown": ("temperature",)}, "go", {"settings": {"temperature": 0.5}}),
        ({"unknown": ("max_tokens",)}, "go", {"settings": {"max_output_tokens": 9_000}}),
        ({"unknown": ("max_completion_tokens",)}, "go", {"model": "openai:x", "settings": {"max_output_tokens": 9_000}}),
        ({"unknown": ("reasoning_effort",)}, "go",
         {"model": "openai:gpt-5-mini", "settings": {"reasoning_effort": "low"}}),
    ],
)  # fmt: skip
def test_what_was_refused_once_is_not_asked_for_again(
    tmp_path: Path, takes: dict[str, Any], message: Any, options: dict[str, Any]
) -> None:
    with picky(**takes) as server:
        assert [ask(server, tmp_path, message, **options) for _ in range(3)] == [2, 1, 1]


def test_the_longest_reply_is_learned_where_one_must_be_asked_for(tmp_path: Path) -> None:
    """On the Messages wire each request has a cap, even if the user set none."""
    why = "max_tokens: 128000 > 8192, which is the maximum allowed number of output tokens for claude-x"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    with ScriptedServer([status(400, body=error), text("a"), text("b")]) as server:
        for _ in range(2):
            one = Agent("anthropic:claude-x", base_url=server.url, api_key="k", toolsets=[], home=tmp_path)
            assert one.run_conversation("go").completed
            one.close()
        assert [body["max_tokens"] for body in server.bodies] == [128_000, 8_192 - 64, 8_192]


def test_a_fallback_teaches_of_itself_and_not_of_the_primary(tmp_path: Path) -> None:
    with ScriptedServer(repeat(status(401))) as broken, picky(images=False) as server:
        fallback = {"model": "local:m", "base_url": server.url}
        options = {"api_key": "k", "fallbacks": [fallback], "toolsets": [], "home": tmp_path}
        with Agent("openai:gpt-5", base_url=broken.url, **options) as one:
            assert one.run_conversation(LOOK).completed
        assert [fact.subject for fact in facts(tmp_path).all()] == [("local", "m", server.url)]
        assert ask(server, tmp_path, LOOK) == 1


def test_what_was_learned_is_of_one_model_at_one_address(tmp_path: Path) -> None:
    with picky(images=False) as server, picky(images=False) as other:
        assert ask(server, tmp_path, LOOK) == 2
        assert ask(server, tmp_path, LOOK, model="local:another") == 2
        assert ask(other, tmp_path, LOOK) == 2
        assert ask(server, tmp_path, LOOK) == 1


def test_nothing_is_kept_when_the_setting_says_so(tmp_path: Path) -> None:
    with picky(images=False) as server:
        nothing = {"settings": {"learned": {"days": 0}}}
        assert [ask(server, tmp_path, LOOK, **nothing) for _ in range(2)] == [2, 2]
    assert not (tmp_path / LEARNED).exists()


@pytest.mark.slow
def test_another_process_knows_it_and_can_forget_it(tmp_path: Path) -> None:
    program = (
        "import sys, json; from fsm_agent import Agent\n"
        "url, home, content = sys.argv[1:]\n"
        "agent = Agent('local:m', base_url=url, toolsets=[], home=home)\n"
        "assert agent.run_conversation(json.loads(content)).completed"
    )
    with picky(images=False) as server:

        def elsewhere() -> int:
            before = server.requests
            env = environment(OPENAI_API_KEY="k")
            printed("-c", program, server.url, tmp_path, json.dumps(LOOK), env=env)
            return server.requests - before

        assert (elsewhere(), elsewhere()) == (2, 1)
        assert ask(server, tmp_path, LOOK) == 1
        facts(tmp_path).forget("local:m")
        assert ask(server, tmp_path, LOOK) == 2


@pytest.mark.slow
def test_a_turn_that_was_killed_between_refusal_and_reply_still_learns(tmp_path: Path) -> None:
    """A moment after the refusal, that is: what is on its way to the disk by then is there."""
    program = (
        "import os, signal, sys, json, time; from fsm_agent import Agent\n"
        "url, home, content = sys.argv[1:]\n"
        "die = lambda line: 'sent again' in line and (time.sleep(1), os.kill(os.getpid(), signal.SIGKILL))\n"
        "agent = Agent('local:m', base_url=url, api_key='k', toolsets=[], home=home, callbacks={'status': die})\n"
        "agent.run_conversation(json.loads(content))"
    )
    with picky(images=False) as server:
        assert ran("-c", program, server.url, tmp_path, json.dumps(LOOK)).returncode == -9
        with agent(server, tmp_path) as one:
            left = one.journal.recent()[0].id
            assert one.resume(left).run().completed
        assert server.requests == 2
        assert ask(server, tmp_path, LOOK) == 1


@pytest.mark.parametrize("imported", [False, True])
def test_a_turn_that_came_in_a_file_teaches_nothing(tmp_path: Path, imported: bool) -> None:
    with picky() as server, closing(Store(tmp_path / "a")) as left, closing(Store(tmp_path / "b")) as store:
        session, turn = left_unfinished(left.home, [text("ok")], 1)
        import_lines(store, export_session(left.database, session, raw=True))
        with agent(server, tmp_path / ("b" if imported else "a")) as one:
            close = one.resume(turn).pipeline
            asyncio.run(close(CloseTurn(lessons=(Lesson("local", "m", URL, "vision"),))))
        assert len(facts(Path(one.home)).all()) == (not imported)


def test_a_server_that_names_a_window_of_one_token_does_not_make_its_model_useless(tmp_path: Path) -> None:
    with picky(lies=1) as server:
        one = agent(server, tmp_path, model="openai:gpt-x")
        assert one.run_conversation("go").failed  # a server that may refuse everything can refuse this turn
        one.close()
        assert facts(tmp_path).all() == ()
        assert ask(server, tmp_path, model="openai:gpt-x") == 1


def test_a_window_that_is_disproved_is_forgotten(tmp_path: Path) -> None:
    """The least that is believed is smaller than the prompt that the server reads without a word."""
    with picky() as server:
        lesson = Lesson("openai", "gpt-x", server.url, "window", BOUNDS["window"][0])
        facts(tmp_path).keep([lesson])
        ask(server, tmp_path, "words and words " * 1_000, model="openai:gpt-x")
    assert facts(tmp_path).all() == ()


def test_a_refusal_that_no_reply_proves_teaches_nothing(tmp_path: Path) -> None:
    with picky(images=False, unknown=("model",)) as server, agent(server, tmp_path) as one:
        assert one.run_conversation(LOOK).failed
    assert facts(tmp_path).all() == ()


@pytest.mark.behaviour("BUILD-22")
def test_a_reply_that_is_cut_may_be_longer_than_the_refusal_said(tmp_path: Path) -> None:
    """A cap is named with room for the prompt of then; the one that follows a cut reply is not bound by it."""
    with picky(output=5_000, cuts=2) as server:
        ask(server, tmp_path, settings={"max_output_tokens": 6_000})
        caps = [body["max_tokens"] for body in server.bodies]
    assert caps == [6_000, 5_000 - 64, 5_000, 5_000]


def test_a_fact_only_makes_requests_smaller_and_plainer(tmp_path: Path) -> None:
    learned, everything = facts(tmp_path), (*BOUNDS, *SWITCHES)
    learned.keep([Lesson("local", "m", URL, name, 9_000 if name in BOUNDS else 1) for name in everything])
    learned.refresh()
    small = learned.apply(runtime(window=4_096, most_output=1_000))
    assert (small.window, small.most_output) == (4_096, 1_000)
    large = learned.apply(runtime(window=128_000))
    assert (large.window, large.most_output, large.vision, large.streaming) == (9_000, 9_000, False, False)
    assert large.repairs == frozenset(SWITCHES)


@given(st.sampled_from([*BOUNDS, *SWITCHES, "bypass", ""]), st.integers(-(10**12), 10**12))
def test_what_is_out_of_bounds_is_not_kept(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: int
) -> None:
    home = tmp_path_factory.mktemp("home")
    facts(home).keep([Lesson("local", "m", URL, name, value)])
    least, most = BOUNDS.get(name, (1, 1))
    kept = (name in BOUNDS or name in SWITCHES) and least <= value <= most
    assert [one.value for one in facts(home).all()] == [value] * kept


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"facts": 3}', '{"facts": [3]}', '{"facts": [{"name": "window"}]}', "\udcff", '{"facts": [' * 9_000,
    '{"facts": [{"provider": "local", "model": "m", "address": "' + URL + '", "name": "window", "value": 1, "at": 9e9}]}',
    '{"facts": [{"provider": "local", "model": "m", "address": "' + URL + '", "name": "approve", "value": 1, "at": 9e9}]}',
])  # fmt: skip
def test_a_damaged_file_counts_as_nothing_learned(tmp_path: Path, text: str) -> None:
    (tmp_path / LEARNED).write_text(text, encoding="utf-8", errors="surrogateescape")
    assert facts(tmp_path).all() == ()
    facts(tmp_path).keep([Lesson("local", "m", URL, "vision")])
    assert [one.name for one in facts(tmp_path).all()] == ["vision"]


def test_a_fact_expires(tmp_path: Path) -> None:
    facts(tmp_path, now=1_000_000.0).keep([Lesson("local", "m", URL, "vision")])
    day = 86_400.0
    ages = {-2: False, 0: True, 6.9: True, 7.1: False}
    assert {age: bool(facts(tmp_path, now=1_000_000.0 + age * day).all()) for age in ages} == ages


def test_many_writers_lose_nothing_and_other_users_cannot_read_it(tmp_path: Path) -> None:
    def write(number: int) -> None:
        address = "https://me:secret@h.example/v1?key=secret"
        facts(tmp_path / "home").keep([Lesson("local", f"m{number}", address, "vision")])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(facts(tmp_path / "home").all()) == 12
    for path in (tmp_path / "home").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "secret" not in path.read_text(encoding="utf-8")
