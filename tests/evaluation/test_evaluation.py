"""Cases are asked over HTTP, once; scores, intervals, gates and comparisons follow from the answers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fsm_agent import Agent, tool
from fsm_agent.conversation.messages import Usage
from fsm_agent.errors import ConfigError
from fsm_agent.evaluation import (
    Answer,
    Case,
    Dataset,
    Evaluation,
    Figures,
    Gate,
    Judge,
    cases_from_turns,
    compare,
    evaluate,
    read_cases,
    read_run,
    write_cases,
)
from fsm_agent.evaluation.run import digest_of
from fsm_agent.evaluation.scores import scorer_of
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import ScriptedServer, call, repeat, status, text, tools
from tests.evaluation.conftest import CASES, knows
from tests.helpers.harness import MakeAgent

PRICES = {"local:any": {"input": 1, "output": 1_000}}
SETTINGS = {"prices": PRICES, "api_max_retries": 1}
pytestmark = pytest.mark.agent(model="local:any", toolsets=[], clock=None, settings=SETTINGS)


def test_an_agent_is_scored_and_a_second_run_asks_nothing(agent: MakeAgent, server: ScriptedServer) -> None:
    one = agent(base_url=server.url)
    run = evaluate(one, CASES, ["exact", "contains=o", "cost", "latency"])
    assert server.completions == 4
    assert run.figures["exact"].mean == 0.75
    assert run.values("contains") == {"Norway": 1.0, "Italy": 1.0, "France": 0.0, "Spain": 1.0}
    assert run.figures["cost"].mean == pytest.approx((10 * 1 + 2 * 1_000) / 1e6)
    assert run.figures["latency"].min > 0
    assert [one.scores["exact"].why for one in run.results][-1] == "answered 'Barcelona'"
    again = evaluate(agent(base_url=server.url), CASES, ["exact", "tools=lookup"])
    assert server.completions == 4
    assert all(one.cached for one in again.results)
    assert (again.figures["exact"], again.figures["tools"].mean) == (run.figures["exact"], 0)
    assert read_run(one.store, run.name) == run


def test_another_setting_asks_again_and_another_expectation_does_not(
    agent: MakeAgent, server: ScriptedServer
) -> None:
    evaluate(agent(base_url=server.url), CASES)
    wrong = [Case(one.id, one.input, "Oslo") for one in CASES]
    assert evaluate(agent(base_url=server.url), wrong).figures["exact"].mean == 0.25
    assert server.completions == 4
    evaluate(agent(base_url=server.url, system_prompt="Be brief."), CASES)
    assert server.completions == 8


@tool(effect="pure")
def lookup(city: str) -> str:
    """Weather for a city."""
    return f"{city}: sunny"


def test_a_recorded_turn_becomes_a_case_with_its_history_and_its_tools(agent: MakeAgent) -> None:
    replies = [text("Hello."), tools(call("lookup", {"city": "Oslo"})), text("Sunny.")]
    with (
        ScriptedServer([*replies, *replies[1:]]) as server,
        agent(base_url=server.url, tools=[lookup]) as one,
    ):
        one.chat("Hi.")
        one.chat("How is the weather in Oslo?")
        turns = [info.id for info in reversed(one.journal.recent())]
        found = cases_from_turns(one.store, turns)
        first, second = found.cases
        assert (first.input, first.expected, first.tools, first.history) == ("Hi.", "Hello.", (), ())
        assert (second.expected, second.tools) == ("Sunny.", ("lookup",))
        assert [row["content"] for row in second.history] == ["Hi.", "Hello."]
        run = evaluate(one, [second], ["exact", "tools", "tools_exclude=close"], ["tools>=1", "exact>=1"])
        assert [row["content"] for row in server.bodies[3]["messages"][-3:]] == [
            "Hi.", "Hello.", second.input,
        ]  # fmt: skip
        again = cases_from_turns(one.store, [run.results[0].turn])
        assert (again.cases, len(again.left_out)) == ((), 1), "a turn of an evaluation is not a case"


def test_a_provider_that_fails_leaves_a_case_open_for_the_next_run(agent: MakeAgent) -> None:
    with ScriptedServer([status(401), text("Oslo")]) as server:
        case = CASES[:1]
        with pytest.raises(AssertionError, match=r"Norway: its turn .* ended with non_retryable_error"):
            evaluate(agent(base_url=server.url), case, gates=["exact>=0"])
        run = evaluate(agent(base_url=server.url), case, gates=["exact>=1"])
        assert run.results[0].cached is False
        assert [row["role"] for row in server.bodies[1]["messages"]] == [
            row["role"] for row in server.bodies[0]["messages"]
        ]
        evaluate(agent(base_url=server.url), case)
        assert server.completions == 2


def test_a_budget_ends_a_run_that_the_next_one_continues(agent: MakeAgent, server: ScriptedServer) -> None:
    settings = SETTINGS | {"max_output_tokens": 32}
    one = agent(base_url=server.url, settings=settings)
    first = LOOP.run(
        Evaluation(one, Dataset("capitals", tuple(CASES)), [scorer_of("exact")], usd=0.036).run()
    )
    assert len(first.unanswered) in (1, 2, 3)
    assert "budget is spent" in first.unanswered[-1].problem or "cost_limit" in first.unanswered[-1].problem
    assert first.usd <= 0.036
    asked = server.completions
    assert asked < 4
    second = LOOP.run(Evaluation(one, Dataset("capitals", tuple(CASES)), [scorer_of("exact")], usd=1).run())
    assert not second.unanswered
    assert server.completions == 4


def verdict(received: Any) -> Any:
    """Answers as an agent, and as a judge by the word “reference”."""
    asked = received.body["messages"][-1]["content"]
    if "reference" not in asked:
        return knows(received)
    good = "Barcelona" not in asked
    return text(
        json.dumps({"score": float(good), "reason": "right" if good else "wrong"}), usage=Usage(10, 5)
    )


def test_a_judge_has_a_budget_and_a_cache_of_its_own(agent: MakeAgent) -> None:
    with ScriptedServer(repeat(verdict)) as server:
        prices = {**PRICES, "local:judge": PRICES["local:any"]}
        settings = SETTINGS | {"max_output_tokens": 64, "prices": prices}
        one = agent(base_url=server.url, settings=settings)
        judge = Judge("Is it the capital?", "local:judge", usd=1, base_url=server.at("judge"))
        run = evaluate(one, CASES, [judge, "exact"])
        judged = [one for one in server.requests if one.path.startswith("/judge/")]
        assert len(judged) == 4
        assert run.values("judge") == run.values("exact")
        assert run.results[-1].scores["judge"].why == "wrong"
        assert run.judged_usd == pytest.approx(4 * (10 + 5 * 1_000) / 1e6)
        evaluate(one, CASES, [judge])
        assert server.completions == 8
        poor = Judge("Is it a large city?", "local:judge", usd=0.07, base_url=server.at("judge"))
        left = evaluate(one, CASES, [poor, "exact"])
        assert 0 < len(left.unscored) < 4
        assert left.judged_usd <= 0.07
        assert (left.figures["exact"].cases, left.figures["judge"].cases) == (4, 4 - len(left.unscored))


def test_judges_of_one_criterion_ask_their_own_models(agent: MakeAgent) -> None:
    with ScriptedServer(repeat(verdict)) as server:
        one = agent(base_url=server.url)
        judges = [
            Judge("Is it the capital?", f"local:{name}", name=name, base_url=server.url)
            for name in ("small", "large")
        ]
        evaluate(one, CASES[:1], judges)
        assert [body["model"] for body in server.bodies][1:] == ["small", "large"]


# Figures, gates, and comparisons


def test_intervals_are_the_same_for_a_seed_and_hold_the_mean() -> None:
    values = [1.0] * 30 + [0.0] * 10
    one = Figures.of(values, 3)
    assert one == Figures.of(values, 3)
    assert one.low < one.mean == 0.75 < one.high
    # the normal approximation, which bootstrap is near at 40 values
    assert (one.low, one.high) == pytest.approx((0.616, 0.884), abs=0.03)
    assert Figures.of([2.0, 2.0]).low == Figures.of([2.0]).high == 2.0
    assert Figures.of([]) is None


@pytest.mark.parametrize(
    ("text", "ok"),
    [("a>=0.75", True), ("a>0.75", False), ("a.low>=0.9", False), ("a.max<=1", True), ("a.min<0", False), ("a.total>=30", True), ("a.p95<=1", True), ("b>=0", False)],
)  # fmt: skip
def test_a_gate_holds_or_not(text: str, ok: bool) -> None:
    figures = {"a": Figures.of([1.0] * 30 + [0.0] * 10), "b": None}
    assert Gate.of(text).judge(figures).ok is ok


def test_two_runs_are_compared_case_by_case(agent: MakeAgent, server: ScriptedServer) -> None:
    one = agent(base_url=server.url)
    before = evaluate(one, CASES[:3], ["exact"], name="before")
    hit = [
        Case("Spain", "The capital of Spain?", "Barcelona"),
        *CASES[:2],
        Case("France", CASES[2].input, "Lyon"),
    ]
    after = evaluate(one, hit, ["exact", "cost"], name="after")
    found = compare(before, after)
    assert found.differences["exact"].mean == pytest.approx(-1 / 3)
    assert [(c.case, c.before, c.after) for c in found.changes] == [("France", 1.0, 0.0)]
    assert found.alone == 1
    assert [one.ok for one in found.judge(["exact>=-0.5", "exact.low>=-0.1"])] == [True, False]
    assert found.differences["exact"].low < -1 / 3 < found.differences["exact"].high


# Datasets of others


RICH = Dataset(
    "capitals",
    (
        Case("a", "The capital of Norway?", "Oslo", (), {"tools": ["lookup"], "hard": 1}),
        Case("b", "And of Italy?", ["Rome", "Roma"]),
        Case(
            "c",
            "Now?",
            "Warm.",
            (
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "lookup", "arguments": '{"city":"Oslo"}'}}]},
                {"role": "tool", "content": "sunny", "tool_call_id": "1"},
                {"role": "assistant", "content": "Sunny."},
            ),
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize("name", ["capitals.jsonl", "capitals.json", "capitals.yaml"])
def test_cases_come_back_from_each_format(tmp_path: Path, name: str) -> None:
    write_cases(RICH, tmp_path / name)
    found = read_cases(tmp_path / name)
    assert [one.digest for one in found.cases][:2] == [one.digest for one in RICH.cases][:2]
    assert [(one.id, one.input, one.expected, dict(one.metadata)) for one in found.cases] == [
        (one.id, one.input, one.expected, dict(one.metadata)) for one in RICH.cases
    ]
    assert [row["role"] for row in found.cases[2].history] == ["user", "assistant", "tool", "assistant"]
    assert found.cases[2].history[1]["tool_calls"] == RICH.cases[2].history[1]["tool_calls"]


def test_parts_of_a_foreign_file_without_a_meaning_are_named(tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    file.write_text(
        json.dumps(
            {"cases": [{"inputs": "a?", "evaluators": ["EqualsExpected"]}], "evaluators": ["Contains"]}
        )
    )
    assert read_cases(file).left_out == ("evaluators",)
    file.write_text(json.dumps([{"input": "a?", "choices": ["x"], "target": ""}]))
    found = read_cases(file)
    assert (found.left_out, found.cases[0].expected, found.cases[0].id) == (("choices",), None, "1")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("x.csv", "a", "unknown format"),
        ("x.jsonl", "{", "line 1"),
        ("x.jsonl", "1", "a case is not an object"),
        ("x.jsonl", '{"input": ""}', "a case has no usable input"),
        ("x.jsonl", '{"input": [{"role": "assistant", "content": "hi"}]}', "does not end with a question"),
        ("x.jsonl", '{"input": "a", "metadata": 3}', "metadata of a case is not an object"),
        ("x.jsonl", '{"input": "a", "id": 1}\n{"input": "b", "id": 1}',
         "two cases of x have the same id; given: 1"),
        ("x.json", '{"cases": 3}', "the dataset has no list of cases"),
        ("x.yaml", "a: [", "not valid YAML"),
        ("x.yaml", "!!python/object/apply:os.system ['touch hit']", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, name: str, content: str, line: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_cases(tmp_path / name)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


# Scorers


def answer(words: str, **more: Any) -> Answer:
    return Answer(**{"text": words, "outcome": "completed", "exit": "text_response", "turn": "t", **more})


class City(BaseModel):
    name: str
    people: int


def load(name: str, what: str, allowed: str) -> Any:
    return {"m:City": City, "m:half": lambda case, answer: 0.5, "m:bug": lambda case, answer: 1 / 0}[name]


def scored(word: Any, case: Case, given: Answer) -> float | None:
    scorer: Any = scorer_of(word, load)
    value: float | None = asyncio.run(scorer.score(case, given)).value
    return value


@pytest.mark.parametrize(
    ("word", "given", "value"),
    [
        ("exact", answer(" Oslo\n"), 1), ("exact", answer("oslo"), 0), ("contains", answer("It is OSLO."), 1),
        ("contains=Rome", answer("It is Oslo."), 0), ("schema=m:City", answer('```json\n{"name": "Oslo", "people": 7}\n```'), 1),
        ("schema=m:City", answer('{"name": "Oslo"}'), 0), ("schema=m:City", answer("Oslo"), 0),
        ("tools=a,b", answer("", tools=("a", "b")), 1), ("tools=a,b", answer("", tools=("b", "a")), 0),
        ("tools", answer("", tools=("lookup",)), 1), ("tools_include=a", answer("", tools=("b", "a")), 1),
        ("tools_include=a,c", answer("", tools=("b", "a")), 0), ("tools_exclude=c", answer("", tools=("b", "a")), 1),
        ("tools_exclude=a", answer("", tools=("b", "a")), 0), ("cost", answer("", usd=0.5), 0.5), ("cost", answer("", usd=None), None),
        ("latency", answer("", seconds=3), 3), ("m:half", answer(""), 0.5),
        ("exact", answer("", outcome="failed", exit="content_policy"), 0),
    ],
)  # fmt: skip
def test_a_scorer_gives_an_answer_its_value(word: str, given: Answer, value: float | None) -> None:
    case = Case("a", "?", "Oslo", metadata={"tools": ["lookup"]})
    assert scored(word, case, given) == value


def test_json_is_compared_as_json() -> None:
    case = Case("a", "?", {"name": "Oslo", "people": 7})
    assert scored("exact", case, answer('{"people": 7, "name": "Oslo"}')) == 1


def test_a_case_without_an_expectation_has_no_score_and_its_gate_fails(
    agent: MakeAgent, server: ScriptedServer
) -> None:
    case = [Case("a", "The capital of Norway?")]
    with pytest.raises(AssertionError, match="no case has this score"):
        evaluate(agent(base_url=server.url), case, ["exact"], ["exact>=0"])


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("exactly", "unknown scorer; given: exactly; allowed: exact, perhaps"), ("schema", "unknown scorer"),
        ("schema=no.json", "the schema cannot be read"), ("judge=", "unknown scorer"), ("judge=@none", "the criterion cannot be read"),
        ("m:bug", "scorer bug failed for case a (ZeroDivisionError: division by zero)"), (3, "a scorer has the wrong type; given: 3"),
    ],
)  # fmt: skip
def test_a_scorer_that_cannot_be_used_is_one_line(word: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scored(word, Case("a", "?"), answer("x"))
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"scores": ["exact", "exact"]}, "two scorers have the same name; given: exact"),
        ({"gates": ["exact=>1"]}, "a gate cannot be read; given: exact=>1"),
        ({"gates": ["exat>=1"]}, "a gate names a score that was not asked for; given: exat>=1; allowed: exact, perhaps"),
        ({"jobs": 0}, "--jobs is out of range; given: 0"), ({"usd": -1}, "a budget is out of range; given: -1"),
        ({"name": "a/b"}, "a run cannot have this name; given: a/b"), ({"cases": []}, "there is no case to ask"),
        ({"usd": 1, "settings": {"prices": {}}, "model": "openrouter:x/y"}, "one is not known; given: openrouter:x/y"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_asks_nothing(
    agent: MakeAgent, server: ScriptedServer, more: dict[str, Any], line: str
) -> None:
    made = {
        "settings": SETTINGS | more.pop("settings", {}),
        "model": more.pop("model", "local:any"),
        "api_key": "k",
    }
    one, cases = agent(base_url=server.url, **made), more.pop("cases", CASES)
    with pytest.raises(ConfigError) as caught:
        evaluate(one, cases, more.pop("scores", ["exact"]), **more)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert server.completions == 0


def test_the_fixture_fails_a_test_whose_gate_does_not_hold(
    evaluate: Any, scripted_model: Any, tmp_path: Path
) -> None:
    one = Agent(scripted_model(text("Oslo"), text("Milan")), toolsets=[], home=tmp_path)
    with pytest.raises(AssertionError, match=r"FAILED  exact>=0.9 \(found: 0.5\)"):
        evaluate(one, CASES[:2], ["exact"], ["exact>=0.9"], jobs=1)


def test_a_turn_that_a_crash_cut_off_is_continued_by_the_next_run(agent: MakeAgent) -> None:
    """The first request was answered with a call of a tool; then the process was gone."""
    replies = [tools(call("lookup", {"city": "Oslo"})), text("Oslo")]
    with ScriptedServer(replies) as server:
        one = agent(base_url=server.url, tools=[lookup])
        session = f"eval-{digest_of(one)}-{CASES[0].digest}-1"
        with agent(base_url=server.url, tools=[lookup], session_id=session) as dead:
            LOOP.run(dead.start(CASES[0].input).run_until(state="ExecuteTools"))
        run = evaluate(one, CASES[:1], ["exact", "tools=lookup"], ["exact>=1", "tools>=1"])
        assert server.completions == 2
        assert run.results[0].turn.startswith(session)


def test_the_time_of_people_is_not_counted(agent: MakeAgent) -> None:
    """A person who takes 100 s longer to approve a call changes the turn, and not its latency."""

    @tool(approval="ask")
    def ring(bell: str) -> str:
        """Ring a bell."""
        return "rung"

    with ScriptedServer([tools(call("ring", {"bell": "big"})), text("Rung.")]) as server:
        one = agent(base_url=server.url, tools=[ring], callbacks={"approval": lambda request: True})
        asked = [Case("a", "Ring.", "Rung.")]
        before = evaluate(one, asked, ["latency", "tools=ring"], ["tools>=1"]).figures["latency"]
        for later in (
            "UPDATE transitions SET seconds = seconds + 100 WHERE source = 'ExecuteTools'",
            "UPDATE effects SET seconds = seconds + 100 WHERE kind = 'AskApproval'",
        ):
            one.store.database.write(lambda c, sql=later: c.execute(sql))
        after = evaluate(one, asked, ["latency"]).figures["latency"]
        assert after.mean == pytest.approx(before.mean, abs=1e-6)
        assert sum(step.seconds for step in one.journal.steps(one.journal.recent()[0].id)) > 100


def test_a_conversation_that_is_handed_over_is_one_answer(agent: MakeAgent) -> None:
    """The agent that takes over answers; tools, cost, and the next run's answer are those of both turns."""
    replies = [
        tools(call("transfer_to_maps", {"note": "capitals"})),
        tools(call("lookup", {"city": "Oslo"})),
        text("Oslo"),
    ]
    with ScriptedServer(replies) as server:
        maps = agent(base_url=server.url, name="maps", tools=[lookup])
        one = agent(base_url=server.url, handoffs=[maps])
        run = evaluate(
            one, CASES[:1], ["exact", "tools_include=lookup,transfer_to_maps", "cost"],
            ["exact>=1", "tools_include>=1"],
        )  # fmt: skip
        spent = sum(one.cost or 0 for one in one.journal.usage().values())
        assert run.figures["cost"].mean == pytest.approx(spent)
        again = evaluate(one, CASES[:1], ["exact"], ["exact>=1"])
        assert (again.results[0].cached, server.completions) == (True, 3)


def test_cases_with_the_same_question_share_one_answer(agent: MakeAgent, server: ScriptedServer) -> None:
    cases = [
        Case(str(number), CASES[0].input, answer) for number, answer in enumerate(("Oslo", "Bergen", "Oslo"))
    ]
    run = evaluate(agent(base_url=server.url), cases, jobs=3)
    assert (server.completions, len({one.turn for one in run.results})) == (1, 1)
    assert run.values("exact") == {"0": 1.0, "1": 0.0, "2": 1.0}
    assert evaluate(agent(base_url=server.url), cases[:1], repeat=3).results[0].cached
    assert server.completions == 3, "each repetition is asked once"
