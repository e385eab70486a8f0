"""What always holds of the data of an agent's turn: of each visit, and of the turn at its end. The invariants
say it of rows and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.agent import Agent
from fsm_agent.conversation.result import TurnResult
from fsm_agent.fsm.journal import Exchange
from fsm_agent.fsm.runner import CRASHED
from fsm_agent.fsm.table import Row
from fsm_agent.sessions.store.store import store_for

ORDERED = {
    "retries": "Wait",
    "empties": "Wait",
    "rebuilds": "RebuildClient",
    "rekeys": "Rekey",
    "fallbacks": "SwitchProvider",
}
"""What the next BuildMessages asks for when a row has spent this."""
CUT_SHORT = ("cancelled", "cancelled_waiting", CRASHED, "failed")
"""Events of visits that did not come to their end."""


@dataclass
class Visit:
    """One visit of a state: by which row the turn came, what was asked for and answered, which row it ended
    in (``None`` for the last one). ``said``: the visible text of the reply, of a visit of CallLLM."""

    state: str
    came: Row | None
    exchanges: list[Exchange] = field(default_factory=list)
    row: Row | None = None
    said: str = ""

    @property
    def event(self) -> str:
        """Return what the state reported."""
        return "" if self.row is None else self.row.event

    def asked(self, kind: str) -> list[tuple[Any, Any]]:
        """The requests of this kind with their replies, in order."""
        pairs = [
            pair
            for one in self.exchanges
            for pair in zip(
                one.requests, one.reply if isinstance(one.request, list) else [one.reply], strict=True
            )
        ]
        return [pair for pair in pairs if type(pair[0]).__name__ == kind]


@dataclass(frozen=True)
class Ended:
    """A turn that has ended. ``sent`` and ``served``: requests that its models got, and tokens that they
    reported."""

    turn: Any
    result: TurnResult
    visits: Sequence[Visit]
    agent: Agent
    sent: int
    served: int


def recovery_is_performed(visit: Visit, turn: Any) -> None:
    """What the row ordered that led to BuildMessages is asked for."""
    if visit.state != "BuildMessages" or visit.came is None or visit.event in CUT_SHORT:
        return
    for spent in visit.came.spends:
        if (kind := ORDERED.get(spent)) is not None:
            assert visit.asked(kind), f"{visit.came.id} ordered {kind}, and {visit.event} came without"


def a_request_is_paid_for(visit: Visit, turn: Any) -> None:
    """A visit whose row has spent an attempt makes one request, and no other makes any."""
    if visit.event != CRASHED:
        paid = visit.came is not None and "attempts" in visit.came.spends
        sent = len(visit.asked("CallModel"))
        assert sent == paid, f"{visit.state} made {sent} requests and was paid for {int(paid)}"


def tools_run_when_they_may(visit: Visit, turn: Any) -> None:
    """A call that needs a yes runs when it was given, and every call that was made has its result."""
    need = {tool.name for tool in turn.setup.tools if tool.approval != "never"}
    given = {asked.call_id for asked, said in visit.asked("AskApproval") if said.granted}
    rows = {row.tool_call_id: row for row in turn.rows if row.role == "tool"}
    made = {call.id for row in turn.rows for call in row.tool_calls}
    for ran, outcome in visit.asked("RunTool"):
        assert ran.name not in need or ran.call_id in given, f"{ran.name} ran, and nobody had said yes"
        if visit.event != CRASHED and ran.call_id in made:  # else a program called it, and has its result
            assert outcome.text[:100] in rows[ran.call_id].text, f"the result of {ran.name} is lost"


def blanks_are_what_they_come_after(visit: Visit, turn: Any) -> None:
    """Text that was begun, or said beside calls that put things in order, is used before anything is asked
    for."""
    if visit.state == "EmptyRecovery" and visit.event not in ("cancelled", CRASHED):
        begun, prior = bool(turn.draft.begun.strip()), bool(turn.draft.prior_content)
        expected = "streamed" if begun else "prior" if prior else visit.event
        assert (visit.event, visit.event in ("streamed", "prior")) == (expected, begun or prior)


def what_is_shown_is_what_is_stored(ended: Ended) -> None:
    """The transcript of the result is that of the store, and its notes are for people alone."""
    if ended.visits[0].event == CRASHED:
        return  # before the history was read
    home, url = ended.agent.home, ended.agent.settings.store.database
    stored = store_for(home, database_url=url).session(ended.agent.session_id)
    rows = [row.to_dict() for row in stored.rows]
    assert rows == ended.result.messages, f"stored {rows[-4:]}, shown {ended.result.messages[-4:]}"
    assert stored.holder is None
    assert not [
        row for row in ended.result.messages if row.get("finish_reason") == "note" and row.get("wire", True)
    ]


def calls_are_closed(ended: Ended) -> None:
    """Every call of the turn has one result, and no result is without its call."""
    made = [call.id for row in ended.turn.rows for call in row.tool_calls]
    results = [row.tool_call_id for row in ended.turn.rows if row.role == "tool"]
    assert Counter(made) == Counter(results)


def what_was_sent_is_counted(ended: Ended) -> None:
    """Requests that left, and the tokens that were reported."""
    assert ended.result.total_tokens == ended.served, "tokens that a model reported are lost"
    replies = [reply for visit in ended.visits for _, reply in visit.asked("CallModel")]
    left = [reply for reply in replies if getattr(reply, "sent", True)]
    assert (ended.result.attempts, ended.sent >= len(left)) == (len(left), True), "a request was not counted"


def what_was_said_is_told_once(ended: Ended) -> None:
    """Text that was begun goes on where it was cut; beside calls it stands in their row; the rest is the
    answer."""
    begun, said, answer = "", "", None
    beside: list[str] = []
    for visit in ended.visits:
        match visit.state, visit.event:
            case "CallLLM", "cut_text":
                begun += visit.said
            case "CallLLM", "text" | "summary":
                answer = begun + visit.said
            case "CallLLM", "announced" | "unverified":
                answer, begun = begun + visit.said, ""
            case "CallLLM", "tools":
                answer, said = None, visit.said
            case "ExecuteTools", event if event not in ("bad_json", CRASHED):
                beside, begun = [*beside, begun + said], ""
    rows = [row for row in ended.turn.rows if row.role == "assistant"]
    if any(visit.event == CRASHED for visit in ended.visits):
        return
    assert [row.text for row in rows if row.tool_calls] == beside, "text beside calls is lost"
    exit_reason = ended.result.turn_exit_reason.value
    if exit_reason in ("text_response", "max_iterations_summary"):
        assert rows[-1].text == answer, "the answer is not what was said"
    elif begun.strip() and exit_reason != "prior_content_used" and not ended.result.interrupted:
        assert rows[-1].text.startswith(begun), "text that was begun is lost"


VISIT_CHECKS: tuple[Callable[[Visit, Any], None], ...] = (
    recovery_is_performed,
    a_request_is_paid_for,
    tools_run_when_they_may,
    blanks_are_what_they_come_after,
)
END_CHECKS: tuple[Callable[[Ended], None], ...] = (
    what_is_shown_is_what_is_stored,
    calls_are_closed,
    what_was_sent_is_counted,
    what_was_said_is_told_once,
)
