"""Workers as processes of their own, and what is looked at when they have done their work."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import Turns
from tests.dispatch.app import lines
from tests.helpers.processes import CommandProcess

ROOT = Path(__file__).parents[2]
APP = "tests.dispatch.app:make_agent"


def other_version(folder: Path) -> Path:
    """Copy the states as another version: one row gives its reason in other words. Returns the folder to
    put first on Python's path."""
    shutil.copytree(ROOT / "states", folder / "states", ignore=shutil.ignore_patterns("__pycache__"))
    table = folder / "states" / "fsm_agent_states" / "table.py"
    table.write_text(re.sub(r'why="([^"]+)"', r'why="\1, as ever"', table.read_text(), count=1))
    return folder / "states"


class WorkerProcess(CommandProcess):
    """One ``fsm-agent worker``. ``states``: the version of the states that it runs."""

    sign = "serves"

    def __init__(
        self, world: Path, home: Path, *options: str, states: Path = ROOT / "states", slow: float = 0.3,
        database_url: str | None = None,
    ) -> None:  # fmt: skip
        own = {"PYTHONPATH": f"{states}{os.pathsep}{ROOT}", "DISPATCH_SLOW": str(slow)}
        super().__init__(world, home, "worker", "--app", APP, *options, database_url=database_url, **own)
        self.stopped = False

    def freeze(self) -> None:
        """Suspend the process."""
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def thaw(self) -> None:
        """Resume the process."""
        self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def end(self) -> None:
        """Leave nothing behind."""
        with suppress(ProcessLookupError):
            self.thaw()
        self.kill()


class Quiet:
    """Hears and says nothing."""

    def transition(self, *what: Any, **more: Any) -> None: ...

    def tool_complete(self, *what: Any, **more: Any) -> None: ...

    def status(self, line: str) -> None: ...


def verdict(store: Store, world: Path, orders: Mapping[str, list[str]]) -> list[str]:
    """What is wrong after all is done. ``orders``: the turns of each session as they were submitted."""
    turns, wrong = Turns(store.database), list[str]()
    done = Counter(one["key"] for one in lines(world, "puts"))
    wrong += [f"the unsafe tool ran {times} times for {key}" for key, times in done.items() if times > 1]
    finished = {one["turn"] for one in lines(world, "done")}
    for session, expected in orders.items():
        infos = sorted((turns.info(turn) for turn in expected), key=lambda one: one.began)
        if [one.id for one in infos] != expected:
            wrong.append(f"{session}: {[one.id for one in infos]} is not the order {expected}")
        for before, after in itertools.pairwise(infos):
            if before.ended is None or before.ended > after.began:
                wrong.append(f"{after.id} began before {before.id} had ended")
        for info in infos:
            wrong += _journal(store, turns, info.id, finished)
    if store.database.path is not None:
        (whole,) = store.database.select("PRAGMA integrity_check")[0]
        wrong += [] if whole == "ok" else [str(whole)]
    return wrong


def _journal(store: Store, turns: Turns, turn: str, finished: set[str]) -> Iterator[str]:
    info = turns.info(turn)
    if info.exit != "text_response":
        yield f"{turn} ended with {info.exit}"
    steps = turns.steps(turn)
    if [one.seq for one in steps] != list(range(1, info.seq + 1)):
        yield f"{turn} has moves {[one.seq for one in steps]} of {info.seq}"
    if any(before.dest != after.source for before, after in itertools.pairwise(steps)):
        yield f"the moves of {turn} are no path"
    rows = store.database.select("SELECT status FROM effects WHERE turn = ? AND name = 'put'", turn)
    statuses = [status for (status,) in rows]
    if len(statuses) != 1 or statuses[0] == "in_flight":
        yield f"{turn} says of its unsafe call: {statuses}"
    if statuses == ["done"] and turn not in finished:
        yield f"{turn} says that its unsafe call is done, and it is not"


def unknown(store: Store) -> int:
    """The number of unsafe calls with an unknown outcome."""
    return int(store.database.select("SELECT COUNT(*) FROM effects WHERE status = 'unknown'")[0][0])


def payloads(message: Any) -> Iterator[bytes]:
    """The contents of all payloads in a message of Temporal's."""
    if message.DESCRIPTOR.full_name == "temporal.api.common.v1.Payload":
        yield message.data
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            inner = [one for one in value.values() if hasattr(one, "DESCRIPTOR")]
        else:
            inner = [value] if hasattr(value, "DESCRIPTOR") else value
        for one in inner:
            yield from payloads(one)


async def histories(client: Any) -> tuple[int, int, int]:
    """Replay all workflows with the code of today; how many, the largest payload in bytes, the most events."""
    from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

    from fsm_agent.dispatch.temporal_workflow import SessionTurns

    replayer = Replayer(workflows=[SessionTurns], workflow_runner=UnsandboxedWorkflowRunner())
    count, largest, longest = 0, 0, 0
    async for one in client.list_workflows():
        history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
        await replayer.replay_workflow(history)
        count, longest = count + 1, max(longest, len(history.events))
        largest = max([largest, *(len(data) for event in history.events for data in payloads(event))])
    return count, largest, longest


def by_session(orders: list[Any]) -> dict[str, list[str]]:
    """The turns of each session in the order in which they were submitted."""
    found = defaultdict[str, list[str]](list)
    for order in orders:
        found[order.session].append(order.turn)
    return found
