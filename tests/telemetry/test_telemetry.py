"""Switching it on, its extra data, what it keeps secret, what leaves the process, and that it is absent
by default."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.semconv._incubating.attributes import (
    gen_ai_attributes,
    http_attributes,
    session_attributes,
)
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from fsm_agent import Agent, Settings, tool
from fsm_agent.cli.agent_options import telemetry_of
from fsm_agent.composition.services import Services
from fsm_agent.errors import ConfigError, OwnershipLost
from fsm_agent.options import options_of
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.fence import Fence
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.telemetry import conventions
from fsm_agent.telemetry.export import LogExport
from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, status, text, tools
from tests.helpers.collected import Collected, Collector, attributes_of, collected, id_of, told, trace_of
from tests.helpers.mcp_bench import PATIENT, program
from tests.helpers.processes import environment, ran
from tests.helpers.waiting import until

KEY = "sk-proj-abcdefghijklmnop1234"
WIRES = ("chat_completions", "codex_responses", "anthropic_messages")


@tool(concurrency="parallel", effect="pure")
def login(secret: str) -> str:
    """Log in."""
    return f"logged in with {KEY}"


def test_our_strings_are_those_of_the_conventions() -> None:
    """All but those of ours; the release is one that the package of the conventions knows."""
    known = {
        value
        for module in (
            gen_ai_attributes, gen_ai_metrics, error_attributes, server_attributes, session_attributes,
            http_attributes,
        )
        for name, value in vars(module).items()
        if name.isupper()
    }  # fmt: skip
    ours = {value for name, value in vars(conventions).items() if name.isupper() and isinstance(value, str)}
    standard = {
        value for value in ours if value.startswith(("gen_ai.", "error.", "server.", "session.", "http."))
    }
    assert len(standard) > 30
    assert standard <= known
    assert conventions.SCHEMA_URL in {schema.value for schema in Schemas}
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {conventions.INVOKE_AGENT, conventions.CHAT, conventions.EXECUTE_TOOL} <= operations
    providers = {one.value for one in gen_ai_attributes.GenAiProviderNameValues}
    assert set(conventions.PROVIDERS.values()) - {"azure.ai.openai"} <= providers | {"azure.ai.openai"}
    assert {"openai", "anthropic", "deepseek", "groq"} <= providers, "names that are ours as well"


def all_told(seen: Collected) -> str:
    return " ".join(str(dict(told(span))) + str(span.status.description) for span in seen.spans)


@pytest.mark.behaviour("OBS-03")
@pytest.mark.parametrize("wire", WIRES)
def test_contents_are_told_only_when_they_are_asked_for_and_without_secrets(wire: str) -> None:
    script = [tools(call("login", {"secret": KEY})), text("the answer"), status(400, f"no {KEY}")]
    for contents in (False, True):
        with ScriptedServer(script) as server, collected(contents=contents) as seen:
            bot = Agent(
                "local:m", base_url=server.url, api_mode=wire, toolsets=[], tools=[login], system_prompt="You help.",
                telemetry=seen.given, clock=FakeClock(),
            )  # fmt: skip
            bot.run_conversation(f"my question, with {KEY}")
            bot.run_conversation("again")
            bot.close()
            words = all_told(seen)
            assert KEY not in words
            if not contents:
                hidden = ("my question", "the answer", "logged in", "You help")
                assert not any(word in words for word in hidden)
                continue
            first, second, *_ = seen.named("chat")
            assert "my question" in str(told(first)["gen_ai.input.messages"])
            asked = json.loads(str(told(second)["gen_ai.input.messages"]))
            kinds = [part["type"] for message in asked for part in message["parts"]]
            assert "tool_call" in kinds
            assert "tool_call_response" in kinds
            assert "logged in with sk-***" in [part.get("response") for one in asked for part in one["parts"]]
            told_first = told(first)
            prompt = f"{told_first.get('gen_ai.system_instructions')}{told_first['gen_ai.input.messages']}"
            assert "You help" in prompt
            assert "login" in str(told(first)["gen_ai.tool.definitions"])
            [answer] = json.loads(str(told(second)["gen_ai.output.messages"]))
            assert {"type": "text", "content": "the answer"} in answer["parts"]
            arguments = told(seen.one("execute_tool"))["gen_ai.tool.call.arguments"]
            assert json.loads(str(arguments)) == {"secret": "***"}
            turn = seen.named("invoke_agent")[0]
            assert "the answer" in str(told(turn)["gen_ai.output.messages"])


@pytest.mark.parametrize("wire", WIRES)
def test_providers_get_a_traceparent_only_when_it_is_asked_for(wire: str) -> None:
    for propagate in (False, True):
        with ScriptedServer([text("hi")]) as server, collected(propagate=propagate) as seen:
            bot = Agent("local:m", base_url=server.url, api_mode=wire, toolsets=[], telemetry=seen.given)
            bot.run_conversation("go")
            bot.close()
            [request] = [one for one in server.requests if one.method == "POST"]
            chat = seen.one("chat")
            expected = f"00-{trace_of(chat):032x}-{id_of(chat):016x}-" if propagate else "none"
            assert request.headers.get("traceparent", "none").startswith(expected)


@pytest.mark.slow
def test_mcp_servers_get_a_traceparent_with_each_call(seen: Collected, tmp_path: Path) -> None:
    script = [tools(call("s__meta")), text("fine")]
    meta = {"name": "meta", "description": "What it was called with.", "inputSchema": {"type": "object"}}
    server = program(tools=[meta]) | {"approval": "never"}
    bot = Agent(
        ScriptedModel(script), home=tmp_path, toolsets=[], mcp={"s": server},
        telemetry=seen.given, settings={"mcp": PATIENT},
    )  # fmt: skip
    result = bot.run_conversation("go")
    bot.close()
    [row] = [row for row in result.messages if row["role"] == "tool"]
    called = seen.one("execute_tool s__meta")
    assert f"{trace_of(called):032x}" in row["content"]


def test_log_records_are_tied_to_the_span_that_they_were_made_in(seen: Collected, tmp_path: Path) -> None:
    memory, loggers = InMemoryLogRecordExporter(), LoggerProvider(shutdown_on_exit=False)
    loggers.add_log_record_processor(SimpleLogRecordProcessor(memory))
    handler, ours = LogExport(loggers.get_logger("x")), logging.getLogger("fsm_agent")
    ours.addHandler(handler)
    before = ours.level
    ours.setLevel(logging.INFO)
    try:
        script = [status(500, f"no luck with {KEY}"), text("fine")]
        given: Any = {"toolsets": [], "home": tmp_path, "clock": FakeClock(), "telemetry": seen.given}
        Agent(ScriptedModel(script), **given).chat("go")
    finally:
        ours.removeHandler(handler)
        ours.setLevel(before)
    records = [one.log_record for one in memory.get_finished_logs()]
    failed, turn = seen.named("chat")[0], seen.one("invoke_agent")
    [attempt] = [one for one in records if (one.attributes or {}).get("failure_class") == "server_error"]
    assert (attempt.trace_id, attempt.span_id) == (trace_of(failed), id_of(failed))
    assert (attempt.severity_text, (attempt.attributes or {})["attempt"]) == ("WARNING", 1)
    assert KEY not in str([one.body for one in records])
    [ended] = [one for one in records if "ended: text_response" in str(one.body)]
    assert ended.span_id == id_of(turn)


def test_what_belongs_to_no_turn_is_measured(seen: Collected, tmp_path: Path) -> None:
    Agent(ScriptedModel([text("fine")]), toolsets=[], home=tmp_path, telemetry=seen.given).chat("go")
    store = Store(tmp_path)
    with pytest.raises(OwnershipLost), store.database.reading() as c:
        Fence("nobody's", 7).refuse(c)
    assert len(seen.figures("fsm.queue.wait")) == 1
    assert seen.total("fsm.store.commit.duration") > 0
    assert seen.total("fsm.store.fenced_writes") == 1


def test_settings_switch_it_on_an_argument_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tracing(**options: Any) -> Any:
        given: Any = {"model": ScriptedModel(), "home": tmp_path, **options}
        return Services(options_of(given), Agent.of).telemetry

    assert tracing() is None
    assert tracing(telemetry=True).contents is False
    on = Settings.of({"telemetry": {"enabled": True, "contents": True}})
    assert tracing(settings=on).contents is True
    assert tracing(settings=on, telemetry=False) is None
    with pytest.raises(ConfigError, match=r"telemetry has the wrong type"):
        tracing(telemetry="yes")
    # without the extra it is one clear line
    monkeypatch.setitem(sys.modules, "fsm_agent.telemetry.turn_spans", None)
    with pytest.raises(ConfigError, match=r"telemetry needs OpenTelemetry .*\[otel\]"):
        Agent("offline:demo", home=tmp_path / "2", telemetry=True)


def test_children_of_an_agent_without_it_have_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsm_agent.telemetry.turn_spans", None)  # one that is reported fails
    script = [tools(call("delegate_task", {"tasks": [{"goal": "look"}]})), text("seen"), text("done")]
    on = {"telemetry": {"enabled": True}}
    one = Agent(ScriptedModel(script), toolsets=["delegate"], home=tmp_path, telemetry=False, settings=on)
    result = one.run_conversation("go")
    assert [child.outcome for child in result.children] == ["completed"]
    one.close()


def test_the_standard_variables_decide_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert telemetry_of(Settings()) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    assert telemetry_of(Settings(telemetry={"enabled": False})) is False
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    words = "PROTOCOL is not spoken here; given: grpc; allowed: http/protobuf"
    with pytest.raises(ConfigError, match=words):
        telemetry_of(Settings())
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry_of(Settings()) is False


@pytest.mark.behaviour("OBS-04")
@pytest.mark.slow
def test_nothing_is_loaded_by_default(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom fsm_agent import Agent\nfrom fsm_agent.testing import ScriptedModel, text\n"
        "assert Agent(ScriptedModel([text('hi')]), home=sys.argv[1], toolsets=[]).chat('go') == 'hi'\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = ran("-c", program, tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def command(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in environment().items() if not name.startswith("OTEL_")}
    return ran("-m", "fsm_agent", *arguments, "--home", home, env=env | variables, cwd=home)


@pytest.mark.behaviour("OBS-05")
@pytest.mark.slow
def test_the_command_line_sends_spans_figures_and_log_records_to_a_collector(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\n")
    with Collector() as collector:
        done = command(
            tmp_path, "run", "-q", "what is in this folder?", "--model", "offline:demo",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_HEADERS="x-tenant=blue",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test",
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    spans = {span.span_id: span for span in collector.spans}
    named = {span.name: span for span in collector.spans}
    [turn] = [span for span in spans.values() if span.name == "invoke_agent agent"]
    chat, used = (
        named["chat demo"],
        next(span for name, span in named.items() if name.startswith("execute_tool")),
    )
    assert spans[chat.parent_span_id].name == "state CallLLM"
    assert spans[spans[used.parent_span_id].parent_span_id] is turn
    assert attributes_of(turn)["fsm.exit"] == "text_response"
    assert "gen_ai.input.messages" not in attributes_of(chat)
    assert {"gen_ai.client.operation.duration", "fsm.turn.exits", "fsm.store.commit.duration"} <= {
        metric.name for metric in collector.metrics
    }
    [ended] = [record for record in collector.logs if "ended: text_response" in record.body.string_value]
    assert (ended.trace_id, ended.span_id) == (turn.trace_id, turn.span_id)
    assert {one["service.name"] for one in collector.resources} == {"fsm-agent"}
    assert {one["deployment.environment"] for one in collector.resources} == {"test"}
    assert {one["x-tenant"] for one in collector.headers} == {"blue"}


@pytest.mark.slow
def test_a_collector_that_is_not_there_costs_seconds_and_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
    done = command(
        tmp_path, "run", "-q", "hello", "--model", "offline:demo", OTEL_EXPORTER_OTLP_ENDPOINT=nobody
    )
    assert done.returncode == 0
    assert done.stderr.startswith("fsm-agent: telemetry could not be sent: ")
    assert done.stderr.count("\n") == 1


KILLED = """
import os, signal, sys
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from fsm_agent import Agent, tool
from fsm_agent.telemetry import Telemetry
from fsm_agent.testing import FakeClock, ScriptedModel, call, tools

@tool(effect="pure")
def look() -> str:
    "Look."
    return "fine"

@tool
def fall() -> str:
    "Fall."
    os.kill(os.getpid(), signal.SIGKILL)

tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(sys.argv[2])))
script = [tools(call("look")), tools(call("fall"))]
Agent(
    ScriptedModel(script), home=sys.argv[1], session_id="s", toolsets=[], tools=[look, fall],
    clock=FakeClock(), telemetry=Telemetry(tracers),
).chat("go")
"""


@pytest.mark.behaviour("OBS-02")
@pytest.mark.slow
def test_a_killed_turn_continues_in_a_span_linked_to_the_lost_one(tmp_path: Path) -> None:
    with Collector() as collector:
        done = ran("-c", KILLED, tmp_path, f"{collector.url}/v1/traces")
    assert done.returncode == -9, done.stderr
    lost = {span.parent_span_id for span in collector.spans} - {span.span_id for span in collector.spans}
    [trace_id] = {span.trace_id for span in collector.spans}
    roots = {span.parent_span_id for span in collector.spans if span.name == "state Prepare"}
    assert roots <= lost, "the span of the turn itself was never sent"
    with collected() as seen:
        store = Store(tmp_path)
        bot = Agent(
            ScriptedModel([text("on my feet")]), home=tmp_path, store=store, toolsets=[], clock=FakeClock(),
            telemetry=seen.given,
        )  # fmt: skip
        assert bot.resume("s").run().completed
        turn = seen.one("invoke_agent")
        [link] = turn.links
        assert link.context.trace_id.to_bytes(16, "big") == trace_id != trace_of(turn).to_bytes(16, "big")
        assert {link.context.span_id.to_bytes(8, "big")} == roots
        assert told(turn)["fsm.seq"] > 0
        assert seen.total("fsm.takeovers") == 1


@pytest.mark.slow
def test_a_worker_exports_its_turns_which_are_linked_to_where_they_were_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("temporalio")
    from fsm_agent.dispatch.dispatcher import InProcess, submit
    from tests.dispatch.crew import WorkerProcess

    home = tmp_path / "home"
    with Collector() as collector, collected() as seen:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        worker = WorkerProcess(tmp_path, home, slow=0.0).serves()
        store = Store(home)
        try:
            with seen.tracers.get_tracer("a user's").start_as_current_span("a request") as span:
                order = asyncio.run(submit(store, InProcess(), "hello"))
            until(lambda: any(one.ended for one in Turns(store.database).recent(1, session=order.session)))
            assert worker.leave() == 0, worker.said
        finally:
            worker.end()
        [turn] = [one for one in collector.spans if one.name.startswith("invoke_agent")]
        [link] = turn.links
        assert link.span_id == span.get_span_context().span_id.to_bytes(8, "big")
        assert attributes_of(turn)["fsm.turn.id"] == order.turn
        assert "fsm.queue.wait" in {metric.name for metric in collector.metrics}
