"""The span of a turn, and in it one for each visit of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link

from fsm_agent.conversation.parts import said
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.pipeline import Layer
from fsm_agent.telemetry import contents
from fsm_agent.telemetry import conventions as names
from fsm_agent.telemetry.request_spans import OpenSpan, RequestSpans, model_of, tokens_of
from fsm_agent.telemetry.spans import Spans, TracedTurn, link_to, traceparent_of

COMPACTING = "Compress"
"""The state whose visits are compactions."""


class TurnSpans:
    """One turn, as ``fsm_agent.fsm.pause_point.TurnObserver``. ``handed``: the ``traceparent`` of the turn
    that handed the conversation over, empty for none.

    The span of a turn begins with its first step, in the context of whoever makes that, and ends when nobody
    runs it any more. Who goes on with it (after a crash, a suspension, in another process) begins a span of
    their own that is linked to the one before."""

    def __init__(self, spans: Spans, turn: TracedTurn, handed: Callable[[], str] = str) -> None:
        self._spans, self._turn, self._handed = spans, turn, handed
        self._requests = RequestSpans(spans, turn)
        self._whole: OpenSpan | None = None
        self._visit: OpenSpan | None = None
        self._compressions = 0
        self.layer, self.first_chunk = self._requests.layer, self._requests.first_chunk

    def __del__(self) -> None:
        """Whoever made steps has let go of a turn that did not end."""
        if getattr(self, "_whole", None) is not None:
            self._end()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around one step: what it does is done in the context of the turn's span."""
        whole = self._whole or self._begun()
        token = contexts.attach(trace.set_span_in_context(whole.span))
        try:
            yield
        except BaseException as error:
            whole.broke(error)
            self._end()
            raise
        finally:
            contexts.detach(token)

    def opened(self) -> None:
        """The turn has its session; what ties it to its span is stored with its next move."""
        if self._whole is not None:
            self._turn.setup.set_trace(traceparent_of(self._whole.span))
            self._visited()

    def moved(self, step: Step) -> None:
        """End the visit of one state, and begin that of the next."""
        if self._visit is not None:
            self._visit.tell(
                {
                    names.FSM_EVENT: step.event,
                    names.FSM_ROW: step.row,
                    names.FSM_DEST: step.dest,
                    names.FSM_GUARDS: [f"{label}: {str(value).lower()}" for label, value in step.guards],
                    names.FSM_CHANGES: [f"{name} {before}→{after}" for name, before, after in step.changes],
                }
            )
            if self._turn.recovery.failure_class and step.source == "ClassifyError":
                self._visit.tell({names.FSM_FAILURE_CLASS: self._turn.recovery.failure_class})
            self._left()
        self._spans.instruments.moved(step.changes)
        if self._whole is not None:
            self._visited()

    def closed(self, ended: bool, result: TurnResult | None) -> None:
        """Nobody runs the turn any more."""
        if self._whole is None:
            return
        if result is not None:
            self._finished(self._whole, result)
        else:
            self._whole.tell({names.FSM_UNFINISHED: True})  # suspended, or left to another process
        self._end()

    def _begun(self) -> OpenSpan:
        turn = self._turn
        about = {
            **self._requests.about(),
            names.OPERATION: names.INVOKE_AGENT,
            **model_of(turn.setup.runtime),
        }
        name = f"{names.INVOKE_AGENT} {turn.setup.agent}"
        span = self._spans.span(name, None, {**about, names.FSM_SEQ: turn.seq}, links=self._links())
        self._whole = OpenSpan(span, about)
        self._compressions = len(turn.compaction.compressions)
        self._requests.context = trace.set_span_in_context(span)
        self._spans.instruments.running(1)
        if self._spans.contents:
            asked = said(turn.user_content)
            self._whole.tell(contents.of_turn(names.INPUT_MESSAGES, "user", asked))
        return self._whole

    def _links(self) -> list[Link]:
        if before := self._turn.setup.trace:
            return link_to(before, "continues")
        return link_to(self._handed(), "handed over")

    def _visited(self) -> None:
        """The turn is in a state now."""
        assert self._whole is not None
        state = self._turn.state
        compacts = state == COMPACTING
        operation = names.COMPACT if compacts else names.STATE
        about = {
            **self._requests.about(),
            names.FSM_STATE: state,
            names.FSM_SEQ: self._turn.seq,
        }
        within = trace.set_span_in_context(self._whole.span)
        span = self._spans.span(operation if compacts else f"{names.STATE} {state}", within, about)
        self._visit = OpenSpan(span, about)
        self._requests.context = trace.set_span_in_context(span)

    def _left(self) -> None:
        if self._visit is None:
            return
        for figures in self._turn.compaction.compressions[self._compressions :]:
            self._visit.tell(compaction_of(figures))
            self._spans.instruments.compacted(figures["trigger"])
        self._compressions = len(self._turn.compaction.compressions)
        self._visit.span.end()
        self._visit = None

    def _finished(self, whole: OpenSpan, result: TurnResult) -> None:
        outcome = next(name for name in ("completed", "failed", "partial", "interrupted") if result[name])
        cost, exit_reason = result.estimated_cost_usd, result.turn_exit_reason.value
        whole.tell(
            {
                names.FSM_EXIT: exit_reason,
                names.FSM_OUTCOME: outcome,
                names.FSM_REQUESTS: result.attempts,
                names.FSM_ITERATIONS: result.api_calls,
                names.FSM_COST_STATUS: result.cost_status,
                names.FSM_FALLBACK: result.fallback_activated,
                names.RESPONSE_MODEL: result.model,
            }
        )
        spent = {names.FSM_COUNTER + name: count for name, count in self._turn.counters().items() if count}
        whole.tell(spent | ({} if cost is None else {names.FSM_COST: cost}))
        if result.usage_known:
            whole.tell(tokens_of(result.usage_turn))
        if self._spans.contents and (words := words_of_model(result)):
            whole.tell(contents.of_turn(names.OUTPUT_MESSAGES, "assistant", words))
        if result.failed:
            whole.failed(exit_reason, contents.masked(result.error or ""))
        self._spans.instruments.ended(exit_reason, outcome, cost, whole.attributes)

    def _end(self) -> None:
        whole, self._whole = self._whole, None
        if whole is None:
            return
        self._left()
        whole.span.end()
        self._spans.instruments.running(-1)
        self._spans.instruments.operation(whole.seconds, whole.attributes)


@contextmanager
def compacting(spans: Spans, turn: TracedTurn) -> Iterator[Layer]:
    """A compaction that a person asks for: a span of its own, and the layer around its requests."""
    requests = RequestSpans(spans, turn)
    with requests.opened(names.COMPACT, {**requests.about(), names.FSM_STATE: COMPACTING}) as span:
        requests.context = trace.set_span_in_context(span.span)
        yield requests.layer
        for figures in turn.compaction.compressions:
            span.tell(compaction_of(figures))
            spans.instruments.compacted("manual")


def compaction_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a compaction."""
    return {names.FSM_COMPACTION + name: value for name, value in figures.items() if value is not None}
