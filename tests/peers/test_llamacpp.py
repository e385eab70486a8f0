"""Real turns against llama.cpp's HTTP server with a real model, small and weak: protocol facts, never
wording.

What this server does, and others do not: its Responses wire calls a reply that was cut by its length
completed."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from fsm_agent import Agent, TurnResult
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.history import sendable, violations
from fsm_agent.conversation.messages import Message
from fsm_agent.fsm.runner import Step
from fsm_agent.providers.choose import MODES, choose
from fsm_agent.providers.profiles import LOCAL_SERVERS, local_models
from fsm_agent.sessions.store.journal.conversation_journal import REPLY
from fsm_agent.testing import FakeClock
from fsm_agent_states.logic.facts import window_from
from tests.helpers.harness import SHOWN, Heard, assert_legal_path, echo
from tests.peers.environment import PeerUnavailable
from tests.peers.gateway import WholeRepliesOnly
from tests.peers.llamacpp import MODEL, NAME, PORT, SENTENCE, VERSION, LlamaCpp, is_free

pytestmark = pytest.mark.slow

IS_A_SENTENCE = re.compile(r"[A-Z][a-z ,]{10,60}\.")
SMALL = 1024
"""A window in tokens. One thread reads about a hundred of them in a second, and writes forty."""
FILLER = "alpha beta gamma delta "
"""Five tokens, of which the engine's rule of thumb makes six."""


def peer(window: int = 2048, **options: Any) -> LlamaCpp:
    try:
        return LlamaCpp(window, **options)
    except PeerUnavailable as why:
        pytest.skip(f"xllamacpp {VERSION} or {MODEL} is not here and cannot be installed: {why}")


@pytest.fixture(scope="module")
def brief() -> Iterator[LlamaCpp]:
    """Answers everything with one sentence."""
    with peer(grammar=SENTENCE) as server:
        yield server


@pytest.fixture(scope="module")
def small() -> Iterator[LlamaCpp]:
    """The same in a small window."""
    with peer(SMALL, grammar=SENTENCE) as server:
        yield server


@pytest.fixture(scope="module")
def tireless() -> Iterator[LlamaCpp]:
    """A server whose reply takes more than a minute."""
    with peer(4096, tireless=True) as server:
        yield server


@pytest.fixture(scope="module")
def free() -> Iterator[LlamaCpp]:
    """Says what it wants, or calls a tool."""
    with peer() as server:
        yield server


@pytest.fixture(params=sorted(MODES))
def mode(request: pytest.FixtureRequest, brief: LlamaCpp) -> str:
    name: str = request.param
    if not brief.speaks(name):
        pytest.skip(f"this server does not answer {name}")
    return name


class Legs(BaseModel):
    animal: Literal["cat", "bird"]
    legs: int = Field(ge=0, lt=100)


@dataclass
class Played:
    """One turn that was played to its end."""

    result: TurnResult
    steps: Sequence[Step]
    failures: list[Failure]
    shown: str
    deltas: int

    @property
    def end(self) -> tuple[str, str | None]:
        return self.result.turn_exit_reason.value, self.result.failure_class

    @property
    def path(self) -> list[str]:
        """What the model and the compaction reported, in order."""
        return [step.event for step in self.steps if step.source in ("CallLLM", "Compress")]


@contextmanager
def agent_for(
    server: LlamaCpp, mode: str, heard: Heard, base_url: str = "", **options: Any
) -> Iterator[Agent]:
    listeners = heard.functions(**options.pop("callbacks", {}))
    options = {"toolsets": [], "clock": FakeClock(), "system_prompt": "Be brief.", **options}
    url = base_url or server.base_url(mode)
    agent = Agent(f"llamacpp:{NAME}", base_url=url, api_mode=mode, callbacks=listeners, **options)
    try:
        yield agent
    finally:
        agent.close()


def ask(agent: Agent, heard: Heard, message: str = "Say hello.", history: Any = None) -> Played:
    """One turn, checked."""
    heard.calls.clear()
    turn = agent.start(message, conversation_history=history)
    result = turn.run()
    deltas = [delta for delta in heard.of("stream_delta") if delta]
    effects = [effect for seq in range(len(turn.steps)) for effect in agent.journal.effects(turn.id, seq)]
    replies = [REPLY.decode(effect.reply) for effect in effects if effect.kind == "CallModel"]
    failures = [reply for reply in replies if isinstance(reply, Failure)]
    played = Played(result, turn.steps, failures, "".join(deltas), len(deltas))
    assert sum(bool(result[name]) for name in SHOWN) == 1
    assert result.messages[-1]["role"] == "assistant"
    assert not violations([row.to_dict() for row in map(Message.from_dict, result.messages) if sendable(row)])
    assert_legal_path(turn.steps, result)
    return played


def play(
    server: LlamaCpp, mode: str, message: str = "Say hello.", history: Any = None, **options: Any
) -> Played:
    """One turn of an agent of its own."""
    heard = Heard()
    with agent_for(server, mode, heard, **options) as agent:
        return ask(agent, heard, message, history)


def conversation(tokens: int) -> list[dict[str, str]]:
    """About ``tokens`` tokens of old questions and answers, around forty each."""
    rounds = range(tokens // 80)
    return [
        {"role": role, "content": f"{said} {number}: " + FILLER * 7}
        for number in rounds
        for role, said in (("user", "question"), ("assistant", "answer"))
    ]


def test_the_peers_are_not_installed_where_the_tests_run() -> None:
    """The pytest plugin of ``llmock`` would load itself."""
    assert [name for name in ("xllamacpp", "llmock") if importlib.util.find_spec(name)] == []


# Plain and streamed


def test_a_streamed_turn_and_its_tokens_as_the_server_counts_them(brief: LlamaCpp, mode: str) -> None:
    played = play(brief, mode)
    assert (*played.end, played.result.attempts) == ("text_response", None, 1)
    assert IS_A_SENTENCE.fullmatch(played.result.final_response or "")
    assert played.shown == played.result.final_response
    assert played.deltas > 3
    rows = [row for row in played.result.messages[:-1] if row["role"] in ("system", "user")]
    asked = played.result.prompt_tokens
    assert played.result.usage_known
    read = played.result.input_tokens + played.result.cache_read_tokens
    assert asked == read == played.result.last_prompt_tokens
    assert asked > brief.tokens(rows), "the system prompt is in it"
    assert abs(played.result.output_tokens - played.deltas) <= 2, "a delta is a token, but for the end mark"
    assert played.result.total_tokens == asked + played.result.output_tokens


def test_the_server_holds_the_model_to_the_type_of_the_answer(free: LlamaCpp) -> None:
    """A grammar made of the schema: even so small a model gives an object of the type, at the first try."""
    settings = {"output_mode": "native", "max_output_tokens": 60}
    played = play(free, "chat_completions", "How many legs has a cat?", output_type=Legs, settings=settings)
    assert (*played.end, played.result.attempts) == ("text_response", None, 1)
    assert isinstance(played.result.output, Legs)
    assert 0 <= played.result.output.legs < 100
    assert Legs.model_validate_json(played.shown) == played.result.output


def test_every_wire_comes_to_the_same_prompt(brief: LlamaCpp) -> None:
    """The same conversation is the same number of tokens and the same greedy answer, whichever way it
    came."""
    seen = {
        (played.result.prompt_tokens, played.result.final_response)
        for name in sorted(MODES)
        if brief.speaks(name)
        for played in [play(brief, name, "And now?", conversation(200))]
    }
    assert len(seen) == 1


def test_the_server_reads_only_what_is_new(brief: LlamaCpp, mode: str) -> None:
    """Its cache is a real one: it holds a prefix, token by token, or nothing."""
    heard = Heard()
    with agent_for(brief, mode, heard) as agent:
        first = ask(agent, heard, "Say hello. " + FILLER * 20).result
        second = ask(agent, heard, "Say it again.").result
    assert second.cache_read_tokens >= first.prompt_tokens
    assert second.input_tokens < first.prompt_tokens // 2


def test_no_turn_meets_the_end_of_the_connection_before(brief: LlamaCpp, mode: str) -> None:
    """The server closes after each stream, though it promises to keep the connection open."""
    heard = Heard()
    with agent_for(brief, mode, heard) as agent:
        assert [ask(agent, heard, "Say hello.", []).failures for _ in range(8)] == [[]] * 8


def test_a_plain_turn(brief: LlamaCpp, mode: str) -> None:
    """Behind a gateway that refuses streams: the turn learns that from the refusal."""
    with WholeRepliesOnly(brief.root) as gateway:
        played = play(brief, mode, base_url=brief.base_url(mode).replace(brief.root, gateway.root))
    assert (*played.end, played.path) == ("text_response", None, ["error", "text"])
    assert gateway.streams == [True, False]
    assert IS_A_SENTENCE.fullmatch(played.result.final_response or "")
    assert played.result.usage_known
    assert played.result.total_tokens == played.result.prompt_tokens + played.result.output_tokens


def test_a_reply_cut_by_its_length(tireless: LlamaCpp, mode: str) -> None:
    played = play(tireless, mode, settings={"max_output_tokens": 8})
    if mode == "codex_responses":
        assert (*played.end, played.path) == ("text_response", None, ["text"])
    else:
        assert (*played.end, played.path) == ("length_exhausted", None, ["cut_text"] * 4)
        assert played.result.output_tokens == 8 + 16 + 32 + 64
    assert played.shown == played.result.final_response


# Too long


def test_what_an_overflow_says(small: LlamaCpp, mode: str) -> None:
    """One message that no compaction can help."""
    played = play(small, mode, FILLER * 400)
    assert played.end == ("overflow_uncompressible", "context_overflow")
    assert (played.path, played.result.failed) == (["error", "stuck"], True)
    assert {(failure.status, failure.code) for failure in played.failures} == {
        (400, "exceed_context_size_error")
    }
    assert {window_from(failure.detail) for failure in played.failures} == {SMALL}


@pytest.mark.parametrize("times", [1.2, 6])
def test_an_overflow_is_compacted_once(small: LlamaCpp, mode: str, times: float) -> None:
    """The window it names is believed: half of what there was would still be far too long."""
    heard = Heard()
    with agent_for(small, mode, heard) as agent:
        played = ask(agent, heard, "Say hello.", conversation(int(SMALL * times)))
        after = ask(agent, heard, "And now?")
    assert played.end == ("text_response", None)
    assert played.path == ["error", "unsummarized", "compressed", "text"]
    assert [compression["trigger"] for compression in played.result.compressions] == ["overflow"]
    assert played.result.messages[-2]["content"] == "Say hello."
    assert played.result.last_prompt_tokens < SMALL
    assert (*after.end, after.failures) == ("text_response", None, [])


def test_a_window_that_is_known_is_kept_to(small: LlamaCpp, mode: str) -> None:
    """Compacted before the server has to say anything."""
    played = play(small, mode, history=conversation(2 * SMALL), context_window=SMALL)
    assert (*played.end, played.failures) == ("text_response", None, [])
    assert played.path == ["unsummarized", "compressed", "text"]
    assert [compression["trigger"] for compression in played.result.compressions] == ["threshold"]


def test_a_window_that_fills_while_the_model_writes(mode: str) -> None:
    """Each piece of a cut reply goes back with it, until it is too long for the window."""
    with peer(256, tireless=True) as server:
        played = play(server, mode, "Count. " + FILLER * 10)
        assert played.result.turn_exit_reason.value in (
            "length_exhausted",
            "overflow_uncompressible",
            "text_response",
        )
        assert played.result.attempts <= 8
        assert played.result.final_response
        assert not server.busy


# Interrupted


def test_an_interrupt_in_mid_stream(tireless: LlamaCpp, mode: str) -> None:
    heard = Heard()
    seen: list[str | None] = []

    def fifth(delta: str | None) -> None:
        seen.append(delta)
        if len(seen) == 5:
            agent.interrupt("enough")

    with agent_for(tireless, mode, heard, callbacks={"stream_delta": fifth}) as agent:
        played = ask(agent, heard, "Tell a long story.")
        rested = tireless.wait_for_rest()
        held = tireless.position
    text = "".join(delta for delta in seen if delta)
    assert played.result.turn_exit_reason.value == "interrupted_in_call"
    assert played.result.interrupt_message == "enough"
    assert text
    assert played.result.messages[-1] | {"content": text, "interrupted": True} == played.result.messages[-1]
    assert held < tireless.window // 4
    assert rested < 5, "the rest of the window would take it a minute and more"


def test_an_interrupt_while_the_prompt_is_read(tireless: LlamaCpp, mode: str) -> None:
    """Nothing was said yet."""
    heard = Heard()

    def interrupt() -> None:
        tireless.wait_for_work()
        agent.interrupt()

    with agent_for(tireless, mode, heard) as agent:
        thread = threading.Thread(target=interrupt)
        thread.start()
        played = ask(agent, heard, f"{mode} " + FILLER * 700)
        thread.join()
        rested = tireless.wait_for_rest()
    assert played.end[0] == "interrupted_in_call"
    assert played.deltas == 0
    assert rested < 10, "the prompt alone would take it thirty and more"


# Tools


def test_a_tool_is_called_and_answered(free: LlamaCpp, mode: str) -> None:
    """Whether the model calls is its own affair, so a processor that rounds otherwise may lead it
    elsewhere."""
    played = play(free, mode, "Call echo with candle", tools=[echo], settings={"max_output_tokens": 64})
    roles = [row["role"] for row in played.result.messages]
    if "tool" not in roles:
        pytest.skip("the model made no call here")
    call, answer = played.result.messages[1]["tool_calls"][0], played.result.messages[2]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert (*played.end, played.path) == ("text_response", None, ["tools", "text"])
    assert call["function"]["name"] == "echo"
    assert answer["tool_call_id"] == call["id"]
    assert answer["content"] == json.loads(call["function"]["arguments"])["text"]
    assert played.result.final_response


# Found without being named


def test_a_newcomer_finds_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set and nothing is asked: the server on this machine answers."""
    if any(local_models(row.base_url or "") for row in LOCAL_SERVERS):
        pytest.skip("another model server runs on this machine")
    port = PORT if is_free(PORT) else 0
    with peer(port=port, grammar=SENTENCE) as server:
        if not port:
            monkeypatch.setenv("LLAMACPP_BASE_URL", f"{server.root}/v1")
        environment = {} if port else {"LLAMACPP_BASE_URL": f"{server.root}/v1"}
        choice = choose(env=environment, probe=local_models)
        assert (choice.profile.name, choice.model, choice.base_url) == ("llamacpp", NAME, f"{server.root}/v1")
        assert choice.local
        with Agent(toolsets=[]) as agent:
            assert IS_A_SENTENCE.fullmatch(agent.chat("Say hello."))
