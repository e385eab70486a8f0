"""The workflow of a session: its turns, one after the other. Imports only temporalio and the standard
library, because a server replays it."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

WORKFLOW, ACTIVITY = "fsm.Session", "fsm.run_turn"
SUBMIT, CANCEL, WAITING = "submit", "cancel", "waiting"
IDLE = timedelta(minutes=10)
"""Idle time after which the workflow ends; the next submit starts it again."""
LONGEST = timedelta(days=30)
"""Time limit of a turn on one worker; another worker continues it after its last move."""
CARRIED = 4
"""Maximum number of turns carried over to a new history, so that the payload stays below 1 kB."""
MOST_EVENTS = 20_000
"""Events after which a new history starts despite waiting turns; the server's limit is 51,200."""

Waiting = list[tuple[str, str, float]]
"""(turn, digest, heartbeat timeout in seconds) of each turn, oldest first."""


@workflow.defn(name=WORKFLOW)
class SessionTurns:
    """Runs the turns of a session in the order of submission."""

    def __init__(self) -> None:
        self._line: Waiting = []
        self._running: workflow.ActivityHandle[str] | None = None

    @workflow.run
    async def run(self, waiting: Waiting) -> None:
        """Run waiting and submitted turns until none arrives for ``IDLE``."""
        self._line[:0] = waiting  # a signal may arrive before the start
        while True:
            try:
                await workflow.wait_condition(lambda: bool(self._line), timeout=IDLE)
            except TimeoutError:
                return
            turn, digest, heartbeat = self._line[0]
            self._running = workflow.start_activity(
                ACTIVITY,
                args=[turn, digest],
                task_queue=f"fsm-{digest}",
                start_to_close_timeout=LONGEST,
                heartbeat_timeout=timedelta(seconds=heartbeat),
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
                retry_policy=RetryPolicy(
                    initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=10)
                ),
                result_type=str,
            )
            try:
                await self._running
            except ActivityError as error:
                workflow.logger.info("turn %s did not end on a worker: %s", turn, error.cause)
            self._running = None
            self._line.pop(0)
            info = workflow.info()
            fits = len(self._line) <= CARRIED or info.get_current_history_length() > MOST_EVENTS
            if info.is_continue_as_new_suggested() and fits:
                workflow.continue_as_new(self._line)

    @workflow.signal(name=SUBMIT)
    def submit(self, turn: str, digest: str, heartbeat: float) -> None:
        """Append a turn, even one that already waits: an ended turn is not run again. So the order of a
        signal and the end of a turn does not matter, which a replay may see differently."""
        self._line.append((turn, digest, heartbeat))

    @workflow.signal(name=CANCEL)
    def cancel(self, turn: str) -> None:
        """Remove a waiting turn, or cancel the running one."""
        if self._running is not None and self._line[0][0] == turn:
            self._running.cancel()
        else:
            self._line = [one for one in self._line if one[0] != turn]

    @workflow.query(name=WAITING)
    def waiting(self) -> list[tuple[str, str]]:
        """Return (turn, digest) of the running and waiting turns."""
        return [(turn, digest) for turn, digest, _ in self._line]
