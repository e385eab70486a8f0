"""Real turns against PyPI ``llmock``, a third-party fault server: each fault leads to its documented end.

A streamed text of four words is eight chunks there: the role, four words, the finish reason, the usage,
``[DONE]``. A call of ``note`` is eight too: the role, the name without arguments, three pieces of arguments,
and the same end. A fault ``after_chunks`` n hits the chunk after n whole ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.conversation.history import sendable, violations
from fsm_agent.conversation.messages import Message
from fsm_agent.fsm.runner import Step
from fsm_agent.runtime.clock import SystemClock
from fsm_agent.runtime.ports import Clock
from fsm_agent.testing import FakeClock
from fsm_agent.testing.wires import chat_rows
from tests.helpers.harness import SHOWN, TOOLS, Heard, assert_legal_path
from tests.helpers.sample import sampled
from tests.peers.environment import PeerUnavailable
from tests.peers.llmock import VERSION, LLMock

pytestmark = pytest.mark.slow

WORDS = "alpha beta gamma delta"
NOTED = "precious words"
IMPATIENT = {"stale": {"stream": 1.0}}
"""Long enough for a busy machine: a reply that comes takes a hundredth of it."""
KINDS = ("disconnect", "truncate", "malformed", "stall")
Behaviour = dict[str, Any]


OVERFLOW: Behaviour = {
    "type": "fail", "status": 400, "code": "context_length_exceeded",
    "message": "This model's maximum context length was exceeded.",
}  # fmt: skip


def fail(status: int, times: int | None = 1, **more: Any) -> Behaviour:
    return {"type": "fail", "status": status, "times": times, **more}


def says(text: str = WORDS, times: int | None = 1, **more: Any) -> Behaviour:
    return {"type": "reply", "text": text, "times": times, **more}


def calls_note(times: int | None = 1) -> Behaviour:
    return {"type": "reply", "tool_calls": [{"name": "note", "arguments": {"text": NOTED}}], "times": times}


def stream_fault(kind: str, after_chunks: int, times: int | None = 1) -> Behaviour:
    where = {"kind": kind, "after_chunks": after_chunks, "stall_seconds": 20}
    return {"type": "stream_fault", **where, "times": times}


def bad_call(kind: str, times: int | None = 1) -> Behaviour:
    return {"type": "tool_fault", "kind": kind, "times": times}


def peer(**options: object) -> LLMock:
    try:
        return LLMock(**options)
    except PeerUnavailable as why:
        pytest.skip(f"llmock {VERSION} is not here and cannot be installed: {why}")


@pytest.fixture(scope="module")
def started() -> Iterator[LLMock]:
    with peer() as llmock:
        yield llmock


@pytest.fixture
def llmock(started: LLMock) -> LLMock:
    started.reset()
    return started


@dataclass
class Played:
    """One turn that was played to its end: what the engine says of it, and what the peer saw."""

    result: TurnResult
    steps: Sequence[Step]
    requests: list[dict[str, Any]]
    findings: list[str]
    waits: list[float]
    shown: str

    @property
    def end(self) -> tuple[int, str, str | None]:
        """(attempts, exit reason, class of the last failure)."""
        return len(self.requests), self.result.turn_exit_reason.value, self.result.failure_class

    @property
    def events(self) -> list[str]:
        """What CallLLM reported, in order."""
        return [step.event for step in self.steps if step.source == "CallLLM"]

    @property
    def said(self) -> str:
        """The answer; of a turn that has none, its outcome."""
        outcome = next(name for name in SHOWN if self.result[name])
        return self.result.final_response if outcome == "completed" else outcome

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.requests]


def play(
    llmock: LLMock, *behaviours: Behaviour, clock: Clock | None = None, history: Any = None, **options: Any
) -> Played:
    """One turn with these faults, then a plain one in the same session. Both are checked."""
    clock, heard = clock or FakeClock(), Heard()
    options = {"model": "openai:gpt-x", "api_key": "key", "tools": (), "toolsets": [], **options}
    agent = Agent(base_url=llmock.url, clock=clock, callbacks=heard.functions(), **options)
    try:
        llmock.reset()
        llmock.queue(*behaviours)
        turn = agent.start("continue", conversation_history=history)
        result = turn.run()
        waits, shown = (
            list(getattr(clock, "sleeps", ())),
            "".join(delta for delta in heard.of("stream_delta") if delta),
        )
        played = Played(result, turn.steps, llmock.requests(), llmock.findings(), waits, shown)
        check(result, turn.steps, played.requests)
        llmock.reset()
        turn = agent.start("and now?")
        after, asked = turn.run(), llmock.requests()
        check(after, turn.steps, asked)
        assert (after.completed, after.error, after.attempts) == (True, None, 2 if options["tools"] else 1)
        return played
    finally:
        agent.close()


def check(result: TurnResult, steps: Sequence[Step], requests: Sequence[Mapping[str, Any]]) -> None:
    """What holds after every turn, whatever the peer did. Stored user rows may be adjacent, where
    the answer between them was only a note for people. On the wire they are one row."""
    assert result.attempts == len(requests), "the peer saw another number of requests"
    assert sum(bool(result[name]) for name in SHOWN) == 1
    assert result.messages[-1]["role"] == "assistant"
    stored = violations(
        [message.to_dict() for message in map(Message.from_dict, result.messages) if sendable(message)]
    )
    assert not [violation for violation in stored if "two user rows" not in violation]
    for request in requests:
        assert not violations(request["body"]["messages"])
    assert_legal_path(steps, result)


ANSWERED, RETRIED, REFUSED = "text_response", "api_retries_exhausted", "non_retryable_error"
SLOW = {"a slow reply": "delay", "a slow first token": "slow_first_token"}
FOREVER = {
    400: (1, REFUSED, "format_error"), 401: (1, REFUSED, "auth"), 402: (1, REFUSED, "billing"), 403: (1, REFUSED, "auth"),
    404: (1, REFUSED, "no_such_path"), 408: (6, RETRIED, "timeout"), 413: (1, "overflow_uncompressible", "payload_too_large"),
    422: (1, REFUSED, "format_error"), 429: (3, RETRIED, "rate_limit"), 500: (3, RETRIED, "server_error"),
    502: (3, RETRIED, "server_error"), 503: (3, RETRIED, "overloaded"), 504: (3, RETRIED, "server_error"),
    529: (3, RETRIED, "overloaded"),
}  # fmt: skip
DEAD = {kind: (3, RETRIED, "stale") if kind == "stall" else (6, RETRIED, "timeout") for kind in KINDS}
"""A connection that breaks is worth a new client (three attempts more); a server that hangs is not."""
CUT = (4, "length_exhausted", None)
ENDS: dict[str, tuple[list[Behaviour], tuple[int, str, str | None], str]] = {
    "nothing can be left out": ([OVERFLOW], (1, "overflow_uncompressible", "context_overflow"), "failed"),
    **{what: ([{"type": kind, "seconds": 0.2}, says()], (1, ANSWERED, None), WORDS) for what, kind in SLOW.items()},
    **{f"too {what}": ([{"type": kind, "seconds": 1.8}, says(times=2)], (2, ANSWERED, None), WORDS)
       for what, kind in SLOW.items()},
    "cut by its length": (
        [says("alpha beta ", finish_reason="length"), says("gamma delta")], (2, ANSWERED, None), WORDS),
    "a refusal": ([says("", finish_reason="content_filter")], (1, "content_policy", "content_policy"), "failed"),
    "a blank reply": ([says(""), says()], (2, ANSWERED, None), WORDS),
    "a 401 for the first of two keys": ([fail(401), says()], (2, ANSWERED, None), WORDS),
    **{f"{status} forever": ([fail(status, None)], end, "failed") for status, end in FOREVER.items()},
    **{f"{status} twice": ([fail(status, 2), says()], (3, ANSWERED, None), WORDS)
       for status, (attempts, *_) in FOREVER.items() if attempts == 3},
    **{f"{kind} before any text, forever": ([stream_fault(kind, 1, None)], DEAD[kind], "failed") for kind in KINDS},
    **{f"{kind} in the text, forever": ([stream_fault(kind, 3, None), says(times=None)], CUT, "partial")
       for kind in KINDS},
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_each_fault_has_its_end(llmock: LLMock, what: str) -> None:
    behaviours, end, said = ENDS[what]
    played = play(
        llmock, *behaviours, api_key=["stale", "good"] if "keys" in what else "key", settings=IMPATIENT
    )
    assert (*played.end, played.said) == (*end, said)
    assert said != "failed" or played.result.error
    if what.startswith("too"):
        assert played.events == ["error", "text"]
    if "keys" in what or "twice" in what:
        assert len(played.waits) == (2 if "twice" in what else 0)
    if "forever" in what and end != CUT:
        assert len({json.dumps(body) for body in played.bodies}) == 1, "the same request again"
    if end == CUT:
        assert played.result.final_response == "alpha beta " * 4


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("seconds", [7.0, 0.25])
def test_retry_after_is_what_is_waited(llmock: LLMock, status: int, seconds: float) -> None:
    """A quarter of a second comes as ``retry-after-ms``, beside a ``Retry-After`` that is rounded up."""
    assert play(llmock, fail(status, retry_after=seconds)).waits == [seconds]


def test_a_quota_says_how_long_to_wait() -> None:
    """Two requests a minute, and a clock of ours that the peer does not share: the third must wait half
    a minute."""
    with peer(RPM=2) as llmock:
        clock = FakeClock()
        with Agent("openai:gpt-x", base_url=llmock.url, api_key="key", toolsets=[], clock=clock) as agent:
            results = [agent.run_conversation("continue") for _ in range(3)]
        assert [result.attempts for result in results] == [1, 1, 3]
        assert results[2].turn_exit_reason == "api_retries_exhausted"
        assert results[2].failure_class == "rate_limit"
        assert clock.sleeps == [request["retry_after"] for request in llmock.requests()[2:4]]
        assert clock.sleeps == pytest.approx([30, 30], abs=5)


# Too long


def long_history(rounds: int = 20) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number in range(rounds):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "note", "arguments": "{}"}}
        rows += [
            {"role": "user", "content": f"question {number}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"line {number} " * 250},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    return rows


def test_an_overflow_is_compacted_and_asked_again(llmock: LLMock) -> None:
    played = play(llmock, OVERFLOW, says(), history=long_history())
    assert (*played.end, played.said) == (2, ANSWERED, None, WORDS)
    assert [compression["trigger"] for compression in played.result.compressions] == ["overflow"]


def test_a_window_that_is_really_counted() -> None:
    """The peer estimates each prompt itself; the history is twice its window."""
    with peer(CONTEXT_WINDOW=5_000) as llmock:
        played = play(llmock, history=long_history())
        assert [request["fault"] for request in played.requests] == ["context_window", None]
        assert played.result.completed


def test_an_overflow_forever(llmock: LLMock) -> None:
    played = play(llmock, {**OVERFLOW, "times": None}, history=long_history())
    assert played.end[1:] == ("overflow_uncompressible", "context_overflow")
    assert len(played.result.compressions) <= 3


# Slow


def test_a_slow_stream_is_not_killed() -> None:
    """Eight chunks, each well inside the limit, together beyond it."""
    with peer(STREAM_CHUNK_DELAY_MS=200) as llmock:
        played = play(llmock, says(), settings=IMPATIENT)
        assert (*played.end, played.said) == (1, ANSWERED, None, WORDS)


# Broken streams


@pytest.mark.parametrize("after_chunks", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_broken_before_any_text_is_asked_again(llmock: LLMock, kind: str, after_chunks: int) -> None:
    played = play(llmock, stream_fault(kind, after_chunks), says(times=2), settings=IMPATIENT)
    assert (*played.end, played.events) == (2, ANSWERED, None, ["error", "text"])
    assert played.result.final_response == WORDS
    assert played.bodies[0] == played.bodies[1]


@pytest.mark.parametrize("after_chunks", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_broken_in_the_text_is_continued(llmock: LLMock, kind: str, after_chunks: int) -> None:
    """Both SDKs end such a stream without a word; the fault after five chunks leaves out only the finish
    reason."""
    words = (WORDS + " and on").split(" ")
    begun, rest = " ".join(words[: after_chunks - 1]), " ".join(words[after_chunks - 1 :])
    begun += " " if after_chunks < 5 else ""
    rest = rest if after_chunks < 5 else " " + rest
    played = play(llmock, stream_fault(kind, after_chunks), says(), says(rest), settings=IMPATIENT)
    assert (*played.end, played.events) == (2, ANSWERED, None, ["cut_text", "text"])
    assert played.result.final_response == begun + rest
    assert played.shown == begun + rest, "nothing is shown twice"
    assert [row["role"] for row in played.result.messages] == ["user", "assistant"]
    assert played.bodies[1]["messages"][-2] == {"role": "assistant", "content": begun.strip()}


@pytest.mark.parametrize("after_chunks", [6, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_broken_after_the_finish_reason_is_whole(llmock: LLMock, kind: str, after_chunks: int) -> None:
    played = play(llmock, stream_fault(kind, after_chunks), says(), settings=IMPATIENT)
    assert (*played.end, played.said) == (1, ANSWERED, None, WORDS)
    assert played.result.usage_known is (after_chunks == 7)


# Tool calls


def note_taker() -> tuple[list[str], Any]:
    noted: list[str] = []

    @tool(effect="unsafe")
    def note(text: str = "nothing") -> str:
        """Note a text."""
        noted.append(text)
        return f"noted {text}"

    return noted, note


IN_A_CALL = [(kind, after_chunks) for kind in KINDS for after_chunks in (1, 2, 3, 4)]


@pytest.mark.parametrize(("kind", "after_chunks"), IN_A_CALL)
def test_a_broken_call_runs_once_and_whole(llmock: LLMock, kind: str, after_chunks: int) -> None:
    noted, note = note_taker()
    played = play(
        llmock, stream_fault(kind, after_chunks), calls_note(times=2), tools=[note], settings=IMPATIENT
    )
    assert noted[:1] == [NOTED]
    assert noted.count(NOTED) == 1
    assert played.end == (3, ANSWERED, None)
    assert played.events[0] in ("error", "dropped_call")
    assert [row["role"] for row in played.result.messages] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_with_all_but_its_finish_reason(llmock: LLMock, kind: str) -> None:
    """A stream that merely ends is trusted with a call that is whole; one that breaks is not."""
    noted, note = note_taker()
    replies = calls_note(times=1 if kind == "truncate" else 2)
    played = play(llmock, stream_fault(kind, 5), replies, tools=[note], settings=IMPATIENT)
    assert noted[:1] == [NOTED]
    assert noted.count(NOTED) == 1
    assert played.end == (2 if kind == "truncate" else 3, ANSWERED, None)


def test_arguments_cut_in_half_are_asked_for_again(llmock: LLMock) -> None:
    noted, note = note_taker()
    played = play(llmock, bad_call("malformed_arguments"), calls_note(times=2), tools=[note])
    assert (*played.end, played.events) == (3, ANSWERED, None, ["cut_call", "tools", "text"])
    assert noted[:1] == [NOTED]
    noted.clear()
    played = play(llmock, bad_call("malformed_arguments", times=None), calls_note(times=None), tools=[note])
    assert (*played.end, played.said) == (5, "truncated_tool_call", None, "partial")
    assert NOTED not in noted


def test_a_tool_that_was_never_offered(llmock: LLMock) -> None:
    played = play(llmock, bad_call("unknown_tool"), tools=TOOLS)
    assert played.end == (2, ANSWERED, None)
    told = next(row["content"] for row in played.result.messages if row["role"] == "tool")
    assert "llmock_unknown_tool" in told
    assert "echo, put, fail, todo" in told
    played = play(llmock, bad_call("unknown_tool", times=None), tools=TOOLS)
    assert (*played.end, played.said) == (3, "invalid_tool_calls", None, "partial")


# The peer's own verdict, and all of it at once


@pytest.mark.parametrize(
    "behaviour",
    [
        fail(429, 2, retry_after=0.3), fail(500, 2), fail(529, 2, retry_after=0.3), fail(401, None), OVERFLOW,
        stream_fault("disconnect", 1, times=2), stream_fault("truncate", 1, times=2), stream_fault("stall", 1),
    ],
    ids=lambda behaviour: str(behaviour.get("kind") or behaviour["status"]),
)  # fmt: skip
def test_the_peer_finds_nothing_wrong(llmock: LLMock, behaviour: Behaviour) -> None:
    """It looks at real waits, so these are real, and short: Retry-After obeyed, growing gaps, nothing
    hopeless retried.

    Not asked about malformed chunks, which it holds to be ignored when its short stream was out before we
    hung up; nor about streams cut in their text, as a continuation is to it another call."""
    quick = {**IMPATIENT, "backoff": {"exception": {"base": 0.2, "cap": 1}, "jitter": 0}}
    assert play(llmock, behaviour, clock=SystemClock(), settings=quick).findings == []


def test_a_hundred_turns_of_chaos() -> None:
    """One session, two faults a turn. A connection lost late in it counts as an overflow (over 200
    rows)."""
    rates = {f"ERROR_RATE_{code}": 0.08 for code in (429, 500, 529)} | {"STREAM_FAULT_STALL": 0.01}
    rates |= {f"STREAM_FAULT_{kind}": 0.1 for kind in ("DISCONNECT", "TRUNCATE", "MALFORMED")}
    ends: Counter[str] = Counter()
    faults = 0
    with peer(**rates) as llmock:
        options = {"tools": TOOLS, "toolsets": [], "clock": FakeClock(), "settings": IMPATIENT}
        with Agent("openai:gpt-x", base_url=llmock.url, api_key="key", **options) as agent:
            for number in range(100):
                turn = agent.start(f"question {number}")
                result, requests = turn.run(), llmock.requests()
                check(result, turn.steps, requests)
                ends[result.turn_exit_reason.value] += 1
                faults += sum(request["fault"] is not None for request in requests)
                llmock.reset()
    assert faults > 100
    assert ends[ANSWERED] > 75, ends
    bad = {"api_retries_exhausted", "length_exhausted", "overflow_uncompressible"}
    assert ends.keys() <= {ANSWERED, *bad}


# The other wires: each kind of fault has the same end there

BEFORE_TEXT = {f"{kind} before text": ([stream_fault(kind, 1), says(times=2)], 2, None) for kind in KINDS}
MALFORMED = [bad_call("malformed_arguments"), calls_note(times=2), says()]
FAULTS: dict[str, tuple[list[Behaviour], int, tuple[str, str] | None]] = {
    "nothing": ([says()], 1, None),
    "a tool": ([calls_note(), says()], 2, None),
    "429 with Retry-After": ([fail(429, retry_after=7), says()], 2, None),
    "401": ([fail(401)], 1, ("non_retryable_error", "auth")),
    "500 twice": ([fail(500, 2), says()], 3, None),
    "500 forever": ([fail(500, 3)], 3, ("api_retries_exhausted", "server_error")),
    "529 twice": ([fail(529, 2), says()], 3, None),
    "529 forever": ([fail(529, 3)], 3, ("api_retries_exhausted", "overloaded")),
    "overflow": ([{**OVERFLOW, "times": 1}], 1, ("overflow_uncompressible", "context_overflow")),
    **BEFORE_TEXT,
    "malformed arguments": (MALFORMED, 3, None),
}


@pytest.mark.parametrize(
    ("fault", "model"),
    sampled(product(FAULTS, ["openai-responses:gpt-x", "anthropic:claude-x"]), "faults of modes"),
)
def test_each_fault_has_the_same_end_in_every_mode(llmock: LLMock, model: str, fault: str) -> None:
    behaviours, attempts, failed = FAULTS[fault]
    noted, note = note_taker()
    llmock.queue(*behaviours)
    clock, root = FakeClock(), llmock.url.removesuffix("/v1")
    url = f"{root}/anthropic" if model.startswith("anthropic") else llmock.url
    options = {"tools": [note], "toolsets": [], "clock": clock, "settings": IMPATIENT}
    with Agent(model, base_url=url, api_key="key", **options) as agent:
        result, requests = agent.run_conversation("continue"), llmock.requests()
    reason, named = failed or (ANSWERED, None)
    assert (len(requests), result.turn_exit_reason.value, result.failure_class) == (attempts, reason, named)
    assert result.attempts == attempts
    assert all(violations(chat_rows(request["body"])) == [] for request in requests)
    assert noted == ([NOTED] if fault in ("a tool", "malformed arguments") else [])
    assert failed or result.final_response == WORDS
    assert "Retry-After" not in fault or clock.sleeps == [7.0]
