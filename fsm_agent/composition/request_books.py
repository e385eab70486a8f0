"""Do the books of a turn agree? Rows spend attempts, states say what became of each, wires say what left."""

from __future__ import annotations

from fsm_agent.fsm.journal import Step
from fsm_agent.fsm.runner import CRASHED
from fsm_agent_states.turn import TurnState


class RequestBooks:
    """Compares three counts of the requests of one turn after each move: those that the table's rows paid
    for, those that the turn accounts for, and those that left by a wire. A fork may begin
    with other counters, so what is compared is what was added since then; after a bug of ours, nothing."""

    def __init__(self, turn: TurnState) -> None:
        self._turn = turn
        self._unaccounted, self._sent_before = self._open(), turn.accounting.request_count
        self._closed = self._by_hand = False

    def balance(self, step: Step, departed: int, *, watched: bool) -> bool:
        """Say whether they agree after ``step``. ``departed``: requests that left here, or are known to have
        left elsewhere. ``watched``: somebody stands at the gate, who may answer in the place of a model."""
        self._by_hand = self._by_hand or watched
        self._closed = self._closed or step.event == CRASHED
        sent = self._turn.accounting.request_count - self._sent_before
        agree = sent >= departed if self._by_hand else sent == departed
        return self._closed or (agree and self._open() == self._unaccounted)

    def _open(self) -> int:
        """Attempts that were paid for and that nothing is said of, without the one that a row has just paid
        for."""
        turn = self._turn
        paid = turn.count("attempts") - ("attempts" in turn.spent)
        return paid - turn.accounting.request_count - turn.accounting.unsent

    def __str__(self) -> str:
        turn = self._turn
        return (
            f"{turn.count('attempts')} attempts spent, {turn.accounting.request_count} requests sent,"
            f" {turn.accounting.unsent} not sent"
        )
