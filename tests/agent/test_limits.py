"""Limits in money, tokens and time: what is sent under them, what ends a turn, and that what was spent counts
everywhere, with a provider that keeps its own count."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsm_agent import Agent, Limits, TurnResult, tool
from fsm_agent.conversation.effects import Failure, ModelRequest
from fsm_agent.conversation.messages import ModelReply, ToolCall, Usage
from fsm_agent.errors import ConfigError
from fsm_agent.runtime.ports import StreamSink
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.rewind import position_of
from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, repeat, status, text, tools
from fsm_agent.testing import call as called

NAME = "scripted:scripted"
IN, OUT = 2.0, 10.0
"""Dollars for a million tokens."""
PRICES = {NAME: {"input": IN, "output": OUT}}

look = tool(effect="pure", name="look")(lambda: "nothing there")


@dataclass
class Counting:
    """A provider that counts tokens itself: the prompt by its length, times ``factor``, and replies as
    ``plan`` says, as far as the cap of the request allows, unless it is ``deaf`` to that. All but the last
    reply of the plan call a tool. ``failing``: how each reply goes wrong, by its place."""

    plan: Sequence[int]
    factor: float = 1.0
    deaf: bool = False
    reports: bool = True
    failing: dict[int, str] = field(default_factory=dict)
    pause: float = 0.0
    prompts: int = 0
    replies: int = 0
    beyond: int = 0
    beyond_usd: float = 0.0
    caps: list[int | None] = field(default_factory=list)

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        body, place = json.loads(request.body), len(self.caps)
        self.caps.append(cap := body.get("max_tokens") or body.get("max_completion_tokens"))
        sink.alive()
        await asyncio.sleep(self.pause)
        match self.failing.get(place):
            case "refused":
                return Failure("http", "overloaded", status=503)
            case "broken":
                self._count(request, cap, int(len(request.body) / 4 * self.factor), 0)
                return Failure("transport", "the connection broke")
        wanted = self.plan[place] if place < len(self.plan) else 50
        reply = wanted if self.deaf or cap is None else min(wanted, cap)
        usage = self._count(request, cap, int(len(request.body) / 4 * self.factor), reply)
        last = place >= len(self.plan) - 1
        calls = () if last else (ToolCall(f"c{place}", "look", "{}"),)
        said = ("words " * reply)[: 4 * reply]
        sink.text(said)
        finish: Any = "length" if reply < wanted else "stop" if last else "tool_calls"
        return ModelReply(said, tool_calls=calls, finish=finish, usage=usage if self.reports else None)

    def _count(self, request: ModelRequest, cap: int | None, prompt: int, reply: int) -> Usage:
        self.prompts, self.replies = self.prompts + prompt, self.replies + reply
        more, longer = max(0, prompt - request.estimate), max(0, reply - (cap or reply))
        self.beyond += more + longer
        self.beyond_usd += (more * IN + longer * OUT) / 1e6
        return Usage(prompt, reply)

    @property
    def tokens(self) -> int:
        return self.prompts + self.replies

    @property
    def usd(self) -> float:
        return (self.prompts * IN + self.replies * OUT) / 1e6

    def use_key(self, key: str) -> None: ...
    async def rebuild(self) -> None: ...
    async def aclose(self) -> None: ...


def limited(model: Any, home: Path, limits: dict[str, Any], /, **more: Any) -> Agent:
    rules = {
        "limits": limits, "prices": PRICES, "store": {"index": False}, "guardrail": {"hard_stop": False},
        "prompt": {"context_files": False}, "dump_failed_requests": False,
    }  # fmt: skip
    rules |= more.pop("settings", {})
    port = model if hasattr(model, "call") else ScriptedModel(model)
    given = {"tools": [look], "toolsets": (), "clock": FakeClock()} | more
    return Agent(port, home=home, settings=rules, **given)


def run(model: Any, home: Path, limits: dict[str, Any], **more: Any) -> TurnResult:
    return limited(model, home, limits, **more).run_conversation("hi")


# Money and tokens


def test_a_turn_ends_before_it_passes_a_limit_in_money(tmp_path: Path) -> None:
    provider = Counting([4_000] * 50)  # 4 cents for a reply
    result = run(provider, tmp_path, {"turn": {"usd": 0.5}})
    assert result.turn_exit_reason == "cost_limit"
    assert result.partial
    assert result.estimated_cost_usd == pytest.approx(provider.usd)
    assert 0.45 < provider.usd <= 0.5 + provider.beyond_usd
    assert result.limit is not None
    assert (result.limit["scope"], result.limit["unit"], result.limit["limit"]) == ("turn", "usd", 0.5)
    assert result.limit["spent"] == pytest.approx(provider.usd)
    assert 0.5 < result.limit["spent"] + result.limit["least"] < 0.6
    assert result.limit["spent"] + result.limit["request"] > 0.6
    words = f"limits.turn.usd is $0.5000, ${provider.usd:.4f} were spent, and the next request takes $0.0"
    assert words in (result.error or "")
    assert (result.error or "").endswith("raise it, or continue with another message.")
    assert (result.final_response or "").startswith("The turn was stopped before a limit in money was passed")
    assert limited([text("yes")], tmp_path, {"turn": {"usd": 0.5}}).chat("again") == "yes"


def test_a_turn_that_is_forked_behind_its_check_is_checked_before_its_request(tmp_path: Path) -> None:
    """The provider has the count: after the fork it is asked no more than the limit of the day allows."""
    provider = Counting([4_000] * 3)
    with limited(provider, tmp_path, {"day": {"tokens": 20_000}}) as first:
        turn = first.start("hi")
        turn.run()
        asking = [step.seq for step in turn.steps if step.dest == "CallLLM"]
    spent, requests = provider.tokens, len(provider.caps)
    with limited(provider, tmp_path, {"day": {"tokens": spent + 100}}) as second:
        result = second.fork(turn.id, asking[-1]).run()
    assert len(provider.caps) == requests, "no request was sent"
    assert result.turn_exit_reason == "attempt_cap_reached"
    assert "limits.day.tokens" in (result.error or "")
    with limited(provider, tmp_path, {"day": {"tokens": 4 * spent}}) as third:
        assert third.fork(turn.id, asking[-1]).run().completed
    assert len(provider.caps) == requests + 1


def test_limits_are_given_to_an_agent_and_to_one_turn(tmp_path: Path) -> None:
    def provider() -> Counting:
        return Counting([4_000] * 50)

    named = limited(provider(), tmp_path, {"turn": {"usd": 0.5}}, limits=Limits(usd=0.2))
    result = named.run_conversation("hi")
    assert result.limit is not None
    assert (result.limit["scope"], result.limit["unit"], result.limit["limit"]) == ("turn", "usd", 0.2)
    assert named.options["limits"] == Limits(usd=0.2)

    free = limited(provider(), tmp_path, {})
    result = free.run_conversation("hi", limits=Limits(tokens=20_000))
    assert (result.turn_exit_reason, result.limit and result.limit["limit"]) == ("token_limit", 20_000)
    stored = position_of(free.store, result.turn_id).settings
    assert stored["limits"]["turn"] == {"usd": None, "tokens": 20_000, "seconds": None}
    assert free.run_conversation("again").limit is None

    both = limited(provider(), tmp_path, {"turn": {"usd": 0.2}})
    result = both.run_conversation("hi", limits=Limits(tokens=10_000_000))
    assert (result.limit or {})["unit"] == "usd", "what is not given stays as the settings have it"
    slow = asyncio.run(limited(provider(), tmp_path, {}).arun("hi", limits=Limits(seconds=1e-9)))
    assert slow.turn_exit_reason == "time_limit"


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Agent("offline:demo").start("hi", limits={"usd": 1}), "limits has the wrong type; given: "),
        (lambda: Agent("offline:demo", usage_limits=3), "allowed: limits=Limits(usd="),
    ],
)
def test_limits_that_are_none_are_refused_in_a_line(made: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        made()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_turn_ends_before_it_passes_a_limit_in_tokens(tmp_path: Path) -> None:
    provider = Counting([3_000] * 50)
    result = run(provider, tmp_path, {"turn": {"tokens": 20_000}})
    assert (result.turn_exit_reason, result.limit and result.limit["unit"]) == ("token_limit", "tokens")
    assert result.total_tokens == provider.tokens <= 20_000 + provider.beyond
    assert "limits.turn.tokens is 20,000 tokens" in (result.error or "")


def test_a_reply_is_made_shorter_so_that_it_fits_in_what_is_left(tmp_path: Path) -> None:
    provider = Counting([1_000, 100_000])
    result = run(provider, tmp_path, {"turn": {"usd": 0.1}})
    first, second = provider.caps[:2]
    assert first is not None
    assert second is not None
    assert 9_000 < first < 10_000, "what 10 cents are worth, without the prompt"
    assert second < first - 1_000, "and without what the first reply cost"
    assert result.turn_exit_reason == "cost_limit"
    assert len(result.final_response or "") > 4 * second - 100, "the reply that was cut is the answer"


def test_without_a_limit_nothing_is_capped_or_asked(tmp_path: Path) -> None:
    provider = Counting([10, 10])
    assert run(provider, tmp_path, {}).limit is None
    assert provider.caps == [None, None]
    kinds = {kind for (kind,) in store_for(tmp_path).database.select("SELECT kind FROM effects")}
    assert "CheckLimits" not in kinds


def test_a_configured_cap_stays_when_it_is_below_what_is_left(tmp_path: Path) -> None:
    provider = Counting([10, 10])
    limited(provider, tmp_path, {"turn": {"usd": 1}}, settings={"max_output_tokens": 500}).chat("hi")
    assert provider.caps == [500, 500]


@pytest.mark.parametrize("where", ["model", "fallback", "auxiliary"])
def test_a_model_without_a_price_is_refused_under_a_limit_in_money(where: str, tmp_path: Path) -> None:
    unknown: dict[str, Any] = {"model": "openrouter:any/model", "api_key": "k"}
    known: dict[str, Any] = {"model": "openai:gpt-5-mini", "api_key": "k"}
    made = {} if where == "model" else {"fallbacks" if where == "fallback" else "auxiliary": [unknown]}
    main = unknown if where == "model" else known
    rules = {"limits": {"day": {"usd": 5}}}
    paid = Agent(**main, **made, home=tmp_path, settings=rules)
    with pytest.raises(ConfigError) as caught:
        paid.start("hi")
    assert str(caught.value) == (
        "limits.day.usd needs the price of every model that may be asked; one is not known;"
        " given: openrouter:any/model; allowed: a model with a list price, or the setting prices, in dollars for"
        ' a million tokens: {"openrouter:any/model": {"input": 1, "output": 4}}'
    )
    prices = {"openrouter:any/model": {"input": 1, "output": 4}}
    Agent(**main, **made, home=tmp_path, settings=rules | {"prices": prices}).start("hi")
    Agent(**main, **made, home=tmp_path, settings={"limits": {"day": {"tokens": 5}}}).start("hi")


def test_a_model_of_ones_own_costs_nothing(tmp_path: Path) -> None:
    result = run(Counting([9_000] * 3), tmp_path, {"turn": {"usd": 0.001}}, settings={"prices": {}})
    assert (result.turn_exit_reason, result.cost_status) == ("text_response", "included")


# Scopes


def test_a_session_counts_all_its_turns_also_of_other_processes(tmp_path: Path) -> None:
    limits, provider = {"session": {"tokens": 20_000}}, Counting([5_000])
    first = limited(provider, tmp_path, limits, session_id="s")
    assert first.run_conversation("hi").completed
    again = limited(Counting([5_000]), tmp_path, limits, session_id="s", store=Store(tmp_path))
    assert again.run_conversation("more").completed
    third = limited(
        Counting([5_000]), tmp_path, limits, session_id="s", store=Store(tmp_path)
    ).run_conversation("more")
    assert (third.turn_exit_reason, third.limit and third.limit["scope"]) == ("token_limit", "session")
    assert third.limit is not None
    assert third.limit["spent"] > 10_000
    assert run(Counting([5_000]), tmp_path, limits, session_id="t").completed


def test_a_day_counts_all_sessions_of_the_home_and_ends_at_midnight(tmp_path: Path) -> None:
    limits = {"day": {"usd": 0.1}}
    assert run(Counting([9_000]), tmp_path, limits).completed
    result = run(Counting([9_000]), tmp_path, limits)
    assert (result.turn_exit_reason, result.limit and result.limit["scope"]) == ("cost_limit", "day")
    assert "wait for tomorrow" in (result.error or "")
    store = store_for(tmp_path)
    asyncio.run(store.write(lambda c: c.execute("UPDATE usage SET at = at - 86400") and None))
    assert run(Counting([9_000]), tmp_path, limits).completed


def test_a_tree_counts_children_and_a_turn_alone_does_not(tmp_path: Path) -> None:
    script = [
        tools(called("delegate", {"tasks": [{"goal": "one"}]}), usage=Usage(100, 1_000)),
        text("the child's", usage=Usage(100, 7_000)),
        text("the parent's", usage=Usage(100, 100)),
    ]

    def under(scope: str) -> TurnResult:
        return run([*script], tmp_path / scope, {scope: {"tokens": 8_000}}, toolsets=("delegate",))

    alone = under("turn")
    assert alone.completed, alone.error
    for scope in ("tree", "session"):
        limit = under(scope).limit
        assert limit is not None
        assert (limit["scope"], limit["unit"], limit["spent"]) == (scope, "tokens", 1_100 + 7_100)


class Delegating(Counting):
    """The first request is answered with a call that begins three children at once."""

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        if self.caps:
            return await super().call(request, sink)
        self.caps.append(None)
        tasks = json.dumps({"tasks": [{"goal": f"part {number}"} for number in range(3)]})
        usage = self._count(request, None, request.estimate, 10)
        return ModelReply(tool_calls=(ToolCall("d", "delegate", tasks),), finish="tool_calls", usage=usage)


def test_children_that_run_at_once_cannot_pass_the_limit_of_their_tree(tmp_path: Path) -> None:
    provider = Delegating([3_000] * 40, pause=0.02)
    boss = limited(provider, tmp_path, {"tree": {"tokens": 40_000}}, toolsets=("delegate",))
    result = boss.run_conversation("hi")
    assert len(result.children) == 3
    assert {child.turn_exit_reason for child in result.children} == {"token_limit"}
    assert 25_000 < provider.tokens <= 40_000 + provider.beyond


def test_another_agent_that_is_a_tool_stays_under_the_limits_of_the_tree(tmp_path: Path) -> None:
    spender = Counting([4_000] * 9)
    helper = limited(spender, tmp_path / "other", {"turn": {"tokens": 1_000_000}}, name="helper")
    script = [tools(called("helper", {"task": "spend"})), text("so it is", usage=Usage(100, 10))]
    limits = {"tree": {"tokens": 20_000}, "day": {"tokens": 50_000}}
    boss = limited(script, tmp_path, limits, tools=[helper.as_tool()])
    result = boss.run_conversation("hi")
    assert result.children[0].turn_exit_reason == "token_limit"
    assert 10_000 < spender.tokens <= 20_000 + spender.beyond


@pytest.mark.parametrize("turns", [2, 5])
async def test_turns_at_once_cannot_pass_a_limit_together(turns: int, tmp_path: Path) -> None:
    provider = Counting([4_000] * 100, pause=0.02)
    agents = [limited(provider, tmp_path, {"day": {"tokens": 30_000}}) for _ in range(turns)]
    results = await asyncio.gather(*(one.arun("hi") for one in agents))
    assert provider.tokens <= 30_000 + provider.beyond
    assert provider.tokens > 20_000, "they wait for each other, and use what there is"
    assert {result.turn_exit_reason.value for result in results} == {"token_limit"}
    assert store_for(tmp_path).reservations.of_others(None, "day") == (0, 0)


def test_what_was_spent_is_what_the_server_counted(tmp_path: Path) -> None:
    with ScriptedServer([repeat(tools(called("look"), usage=Usage(300, 900, cache_read=100)))]) as server:
        prices = {"local:m": {"input": IN, "output": OUT, "cache_read": 1}}
        rules = {"limits": {"turn": {"usd": 0.05}}, "prices": prices, "guardrail": {"hard_stop": False}}
        options: dict[str, Any] = {"tools": [look], "toolsets": (), "home": tmp_path, "settings": rules}
        paid = Agent("local:m", base_url=server.url, **options)
        result = paid.run_conversation("hi")
        paid.close()
    served = server.served_usage
    usd = (served.input * IN + served.output * OUT + served.cache_read) / 1e6
    assert result.turn_exit_reason == "cost_limit"
    assert result.limit is not None
    assert result.limit["spent"] == pytest.approx(usd) == result.estimated_cost_usd
    assert 0.04 < usd <= 0.05


# Requests that were not reported


def test_a_provider_that_reports_nothing_counts_by_the_estimate(tmp_path: Path) -> None:
    provider = Counting([3_000] * 50, reports=False)
    result = run(provider, tmp_path, {"turn": {"tokens": 20_000}})
    assert result.turn_exit_reason == "token_limit"
    assert not result.usage_known
    assert 15_000 < provider.tokens <= 20_000 + provider.beyond


def test_requests_that_break_off_count_and_those_that_are_refused_do_not(tmp_path: Path) -> None:
    provider = Counting([100] * 4, failing={0: "broken", 1: "refused"})
    limited(provider, tmp_path, {"turn": {"tokens": 50_000}}).chat("hi")
    [(count, tokens, cost)] = store_for(tmp_path).database.select(
        "SELECT COUNT(*), SUM(tokens), SUM(cost) FROM unreported"
    )
    assert count == 1
    assert tokens > 0
    assert cost == pytest.approx(tokens * IN / 1e6)


# Time


class Silent(Counting):
    """Half a minute goes by, and nothing comes."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__([])
        self.clock = clock

    async def call(self, request: ModelRequest, sink: StreamSink) -> ModelReply | Failure:
        self.caps.append(None)
        await self.clock.sleep(30)
        await asyncio.Event().wait()
        return Failure("local", "never")


def test_a_request_cannot_outlast_a_limit_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    silent = Silent(clock)
    result = run(silent, tmp_path, {"turn": {"seconds": 29}}, clock=clock)
    assert (result.turn_exit_reason, result.limit and result.limit["unit"]) == ("time_limit", "seconds")
    assert len(silent.caps) == 1
    assert result.limit is not None
    assert 30 <= result.limit["spent"] < 100, result.limit


def test_a_wait_cannot_outlast_a_limit_in_time(tmp_path: Path) -> None:
    clock = FakeClock()

    def limited(request: Any) -> Any:
        clock.advance(1)  # the rest that a wait leaves when the machine's clock was ahead of this one
        return status(429, headers={"retry-after": "300"})

    result = run(limited, tmp_path, {"turn": {"seconds": 20}}, clock=clock)
    assert result.turn_exit_reason == "time_limit"
    assert 18 < sum(clock.sleeps) <= 19


@pytest.mark.parametrize("kind", ["approval", "clarify"])
def test_waiting_for_a_person_takes_no_time(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    act = tool(effect="unsafe", approval="ask", name="act")(lambda: "done")

    async def person(*_: Any) -> Any:
        await clock.sleep(300)
        return True if kind == "approval" else "red"

    asked = called("act") if kind == "approval" else called("clarify", {"question": "?", "choices": ["red"]})
    options = {"tools": [act], "toolsets": ("clarify",), "callbacks": {kind: person}, "clock": clock}
    settings = {"approval": {"timeout": 5_000}}
    script = [tools(asked), text("ok")]
    assert run(script, tmp_path, {"turn": {"seconds": 100}}, settings=settings, **options).completed


def test_time_of_earlier_turns_counts_for_the_session(tmp_path: Path) -> None:
    clock = FakeClock()

    @tool(effect="pure")
    async def slow() -> str:
        await clock.sleep(30)
        return "done"

    def one() -> Agent:
        script = [tools(called("slow")), text("ok")]
        limits = {"session": {"seconds": 50}}
        return limited(script, tmp_path, limits, clock=clock, tools=[slow], session_id="s")

    assert one().run_conversation("hi").completed
    store = store_for(tmp_path)  # moves are timed by the machine's clock
    later = "UPDATE transitions SET seconds = 40 WHERE seq = 3"
    asyncio.run(store.write(lambda c: c.execute(later) and None))
    result = one().run_conversation("again")
    assert (result.turn_exit_reason, result.limit and result.limit["scope"]) == ("time_limit", "session")


def test_time_that_a_person_took_before_a_resume_does_not_count(tmp_path: Path) -> None:
    asyncio.run(halfway(tmp_path, {"turn": {"seconds": 50}}))
    store = store_for(tmp_path)

    def waited(c: Any) -> None:
        c.execute("UPDATE transitions SET seconds = 100 WHERE seq = 1")
        c.execute("UPDATE transitions SET seconds = 20 WHERE seq = 2")
        c.execute(
            "INSERT INTO effects SELECT turn, 0, 99, 0, state, 'AskApproval', name, class, key, status, request, request_crc,"
            " reply, reply_crc, at, 9999, origin FROM effects LIMIT 1"
        )

    asyncio.run(store.write(waited))
    result = resumed(tmp_path, Counting([10] * 3), seconds=19)
    assert result.limit is not None
    assert 20 <= result.limit["spent"] < 60


# Compaction


def test_a_summary_that_could_pass_a_limit_is_not_asked_for(tmp_path: Path) -> None:
    long = [{"role": role, "content": "words " * 2_000} for role in ("user", "assistant")] * 8
    told: list[str] = []
    model = ScriptedModel([text("an answer", usage=Usage(20_000, 10))])
    tight = limited(
        model, tmp_path, {"turn": {"usd": 0.01}}, context_window=40_000, callbacks={"status": told.append},
        auxiliary=[{"model": "openai:gpt-5-mini", "api_key": "k"}],
        settings={"prices": {NAME: {"input": 0.01, "output": 0.01}}},
    )  # fmt: skip
    assert tight.run_conversation("hi", conversation_history=long).turn_exit_reason == "text_response"
    assert any(
        line.startswith("no model is asked for a summary: limits.turn.usd is $0.0100") for line in told
    )
    assert len(json.dumps(model.requests[0])) < 150_000, "it was made shorter without a model"


def test_a_compaction_that_a_person_asks_for_is_checked_and_counted(tmp_path: Path) -> None:
    talk = [{"role": role, "content": "words " * 2_000} for role in ("user", "assistant")] * 8
    provider = Counting([10])
    one = limited(provider, tmp_path, {"day": {"tokens": 200_000}}, session_id="s")
    one.run_conversation("hi", conversation_history=talk)
    before = provider.tokens
    assert one.compact() is not None
    assert len(provider.caps) == 2
    [(turn, tokens)] = store_for(tmp_path).database.select("SELECT turn, tokens FROM unreported")
    assert (turn, tokens) == ("", provider.tokens - before)
    poor = limited(provider, tmp_path, {"day": {"tokens": provider.tokens + 100}}, session_id="s")
    poor.compact()
    assert len(provider.caps) == 2, "no model is asked"


# Continuing a turn


async def halfway(home: Path, limits: dict[str, Any]) -> None:
    turn = limited(Counting([1_000] * 9), home, limits, session_id="s").start("hi")
    await turn.run_until(state="ExecuteTools")


def resumed(home: Path, provider: Counting, **limits: Any) -> TurnResult:
    return limited(provider, home, {"turn": limits}, session_id="s").resume("s").run()


def test_a_turn_continues_under_the_current_limits_of_its_agent(tmp_path: Path) -> None:
    asyncio.run(halfway(tmp_path, {"turn": {"tokens": 2_000}}))
    assert resumed(tmp_path, Counting([1_000] * 3), tokens=50_000).turn_exit_reason == "text_response"


def test_time_before_a_resume_counts_and_the_time_between_does_not(tmp_path: Path) -> None:
    asyncio.run(halfway(tmp_path, {"turn": {"seconds": 50}}))
    store = store_for(tmp_path)
    long_ago = "UPDATE transitions SET at = at - 9999, seconds = 10"
    asyncio.run(store.write(lambda c: c.execute(long_ago) and None))
    kept = store.database.select("SELECT COUNT(*) FROM transitions")[0][0]
    result = resumed(tmp_path, Counting([1_000] * 3), seconds=10 * kept - 5)
    assert result.turn_exit_reason == "time_limit"
    assert result.limit is not None
    assert 10 * kept <= result.limit["spent"] < 10 * kept + 50


# Whatever happens

REPLY = st.integers(1, 9_000)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    plan=st.lists(REPLY, min_size=1, max_size=8), factor=st.sampled_from([0.7, 1.0, 1.8]), deaf=st.booleans(),
    reports=st.booleans(),
    failing=st.dictionaries(st.integers(0, 8), st.sampled_from(["refused", "broken"]), max_size=3),
    scope=st.sampled_from(["turn", "tree", "session", "day"]), usd=st.none() | st.floats(0.001, 0.3),
    tokens=st.none() | st.integers(500, 40_000), cap=st.none() | st.integers(100, 9_000),
)  # fmt: skip
def test_nothing_is_spent_beyond_a_limit_but_what_was_beyond_an_estimate(
    plan: list[int], factor: float, deaf: bool, reports: bool, failing: dict[int, str], scope: str, usd: float | None,
    tokens: int | None, cap: int | None, tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Whatever is replied and reported, in one turn, or in two of a session or a day; by the provider's count."""
    provider = Counting(plan, factor, deaf, reports, failing)
    home, limits = tmp_path_factory.mktemp("h"), {scope: {"usd": usd, "tokens": tokens}}
    for number in range(2 if scope in ("session", "day") else 1):
        name = "s" if scope == "session" else f"s{number}"
        one = limited(provider, home, limits, settings={"max_output_tokens": cap}, session_id=name)
        result = one.run_conversation("hi")
        assert provider.tokens <= (tokens or 10**9) + provider.beyond
        assert provider.usd <= (usd or 10**9) + provider.beyond_usd + 1e-9
        if result.limit is None:
            assert result.turn_exit_reason not in ("cost_limit", "token_limit")
        else:
            assert result.limit["spent"] + result.limit["least"] > result.limit["limit"]


# A process that dies

DIES = """
    import os, signal, sys
    from tests.agent.test_limits import Counting, limited
    from pathlib import Path

    class Dying(Counting):
        async def call(self, request, sink):
            if len(self.caps) == int(sys.argv[2]):
                await super().call(request, sink)
                print(self.tokens, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return await super().call(request, sink)

    one = limited(Dying([2_000] * 9), Path(sys.argv[1]), {"turn": {"tokens": 20_000}}, session_id="s")
    one.run_conversation("hi")
"""


@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_what_a_killed_process_spent_counts_when_the_turn_goes_on(place: int, tmp_path: Path) -> None:
    program = [sys.executable, "-c", textwrap.dedent(DIES), str(tmp_path), str(place)]
    died = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    before, provider = int(died.stdout), Counting([2_000] * 20)
    result = resumed(tmp_path, provider, tokens=20_000)
    assert result.turn_exit_reason == "token_limit"
    unseen = 2_000  # the reply that never arrived
    assert before - unseen + provider.tokens <= 20_000 + provider.beyond + 600
    assert result.limit is not None
    assert result.limit["spent"] > provider.tokens + 2_000 * place
    [(lost,)] = store_for(tmp_path).database.select("SELECT COUNT(*) FROM unreported")
    assert lost == 1
