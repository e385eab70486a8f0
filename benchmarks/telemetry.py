"""What telemetry costs: processor time of a move, without it and with it.

    python benchmarks/telemetry.py [--rounds N] [--json]

The same turns as in ``engine.py`` (a tool round has three moves), on disk. "off" is an agent as it comes;
"spans" has the SDK with a batch processor whose exporter throws everything away, and a meter provider that is
read at the end; "contents" also records messages. Each figure is the best of several runs, with the three
kinds taking turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.engine import agent_of, driven
from fsm_agent import Agent
from fsm_agent.sessions.store import Store
from fsm_agent.telemetry import Telemetry

RUNS = 7


class Nowhere(SpanExporter):
    """Throws away what it is given."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


async def a_move(rounds: int, telemetry: Telemetry | None) -> float:
    """Microseconds of processor time, those of the exporting thread included."""
    with tempfile.TemporaryDirectory() as home:
        made = agent_of(Store(Path(home)), rounds)
        turn = Agent.of({**made.options, "telemetry": telemetry}).start("go")
        moves, seconds = await driven(turn.step)
        return 1e6 * seconds / moves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    meters = MeterProvider([InMemoryMetricReader()])
    kinds = {
        "off": None,
        "spans": Telemetry(tracers, meters),
        "contents": Telemetry(tracers, meters, contents=True),
    }
    best = dict.fromkeys(kinds, float("inf"))
    for _ in range(RUNS):
        for name, telemetry in kinds.items():
            best[name] = min(best[name], asyncio.run(a_move(given.rounds, telemetry)))
    if given.json:
        print(json.dumps(best))
        return
    for name, value in best.items():
        print(f"a move, {name:10} {value:8,.0f} µs {value / best['off']:6.2f}")


if __name__ == "__main__":
    main()
