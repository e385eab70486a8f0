"""What leaves the process: the command line to a collector that speaks the protocol, and spans of a process
that was killed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fsm_agent import Agent
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import FakeClock, ScriptedModel, text
from tests.helpers.collected import collected, told, trace_of
from tests.helpers.collector import Collector, attributes_of
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[2]


def command(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "states")))
    return subprocess.run(
        [sys.executable, "-m", "fsm_agent.cli", *arguments, "--home", str(home)],
        env=environment | {"PYTHONPATH": paths} | variables,
        cwd=home, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


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
def test_a_killed_turn_goes_on_in_a_span_that_is_linked_to_the_one_that_was_lost(tmp_path: Path) -> None:
    with Collector() as collector:
        program = [sys.executable, "-c", KILLED, str(tmp_path), f"{collector.url}/v1/traces"]
        done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
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
