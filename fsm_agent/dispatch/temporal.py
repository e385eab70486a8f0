"""Dispatcher on a Temporal server: it keeps a queue per session, assigns each turn to one worker and, when
that worker's heartbeats stop, to another. The turn itself is in the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import PollerBehaviorSimpleMaximum, UnsandboxedWorkflowRunner
from temporalio.worker import Worker as Served

from fsm_agent.dispatch.dispatcher import HandOver, Order, RunTurn, TurnLink
from fsm_agent.dispatch.temporal_workflow import ACTIVITY, CANCEL, SUBMIT, WAITING, WORKFLOW, SessionTurns
from fsm_agent.dispatch.worker import LOST
from fsm_agent.errors import ConfigError, OwnershipLost
from fsm_agent.support.texts import one_line

log = logging.getLogger(__name__)
SESSIONS = "fsm-sessions"
"""The task queue of the workflows; each table has its own task queue for turns, ``fsm-<digest>``."""
TASK = timedelta(seconds=2)
"""Time limit of one workflow step, after which another worker gets it. It is also how long the next turn of a
session waits if a worker dies at the wrong moment."""
CONNECT, ANSWER = timedelta(seconds=5), timedelta(seconds=10)
BEATS = 0.4
"""Interval of heartbeats as a share of their time limit."""
T = TypeVar("T")


class TemporalDispatcher:
    """Dispatcher for use in one event loop. ``address`` (HOST:PORT) and ``namespace`` of the server; TLS and
    the key are configured as for Temporal's own tools (``TEMPORAL_TLS…``, ``TEMPORAL_API_KEY``, its config
    file). ``heartbeat``: seconds without a heartbeat after which a turn is given to another worker;
    ``digest`` of the table whose turns are served here."""

    def __init__(self, address: str, namespace: str, heartbeat: float, digest: str) -> None:
        self.address, self.namespace, self.heartbeat, self._digest = address, namespace, heartbeat, digest
        self._connected: Client | None = None

    async def client(self) -> Client:
        """Return the connection. Raises ``ConfigError`` without a server, or such a namespace."""
        if self._connected is None:
            given: Any = {"connect_timeout": CONNECT}
            config = ClientConfig.load_client_connect_config()
            given |= {name: config[name] for name in ("tls", "api_key") if config.get(name)}
            try:
                client = await Client.connect(self.address, namespace=self.namespace, **given)
            except (RuntimeError, ValueError, OSError) as error:
                why = one_line(str(error), 200)
                raise ConfigError(
                    f"no Temporal server answers ({why})", self.address, "HOST:PORT of one that runs"
                ) from None
            await self._call_server(
                client.workflow_service.describe_namespace(_namespace(self.namespace), timeout=ANSWER)
            )
            self._connected = client
        return self._connected

    async def _call_server(self, call: Awaitable[T]) -> T:
        """Return the server's response to a request. Raises ``ConfigError``."""
        try:
            return await call
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and "amespace" in error.message:
                raise ConfigError(
                    "Temporal has no such namespace",
                    self.namespace,
                    "one of `temporal operator namespace list`",
                ) from None
            why = f"Temporal at {self.address} refuses ({error.status.name}: {one_line(error.message, 200)})"
            raise ConfigError(why, self.namespace) from None

    async def submit(self, order: Order) -> None:
        client = await self.client()
        started: Any = client.start_workflow(
            WORKFLOW,
            [],
            id=order.session,
            task_queue=SESSIONS,
            task_timeout=TASK,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=SUBMIT,
            start_signal_args=[order.turn, order.digest, self.heartbeat],
            rpc_timeout=ANSWER,
        )
        await self._call_server(started)

    async def cancel(self, order: Order) -> None:
        handle = await self._handle(order.session)
        with contextlib.suppress(_Unknown):
            await self._query_workflow(handle.signal(CANCEL, order.turn, rpc_timeout=ANSWER))

    async def waiting(self, session: str) -> list[Order]:
        """Return the running and waiting turns. Raises ``ConfigError`` if no worker answers."""
        handle = await self._handle(session)
        try:
            found: Any = await self._query_workflow(handle.query(WAITING, rpc_timeout=ANSWER))
        except _Unknown:
            return []
        return [Order(session, turn, digest) for turn, digest in found]

    async def _handle(self, session: str) -> WorkflowHandle[Any, Any]:
        return (await self.client()).get_workflow_handle(session)

    async def _query_workflow(self, call: Awaitable[T]) -> T:
        """Return the response of a workflow. Raises ``_Unknown`` if none with this id is running."""
        try:
            return await call
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise _Unknown from None
            return await self._call_server(_raising(error))

    async def about(self) -> str:
        where, workers = f"Temporal at {self.address}, namespace {self.namespace}", await self.workers()
        return f"{where}; workers with this table ({self._digest}): {', '.join(workers) or 'none'}"

    async def workers(self) -> list[str]:
        """Return the workers that poll for turns of this table, or did recently, and how long ago. Raises
        ``ConfigError``."""
        from temporalio.api.enums.v1 import TaskQueueType
        from temporalio.api.taskqueue.v1 import TaskQueue
        from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

        client = await self.client()
        request = DescribeTaskQueueRequest(
            namespace=self.namespace,
            task_queue=TaskQueue(name=queue_of(self._digest)),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        )
        found = await self._call_server(client.workflow_service.describe_task_queue(request, timeout=ANSWER))
        now = time.time()
        return [
            describe_worker(one.identity, now - one.last_access_time.ToNanoseconds() / 1e9)
            for one in found.pollers
        ]

    async def serve(self, run: RunTurn, slots: int, stop: asyncio.Event) -> None:
        client = await self.client()
        beats = timedelta(seconds=BEATS * self.heartbeat)
        lines = Served(
            client,
            task_queue=SESSIONS,
            workflows=[SessionTurns],
            workflow_runner=UnsandboxedWorkflowRunner(),  # its imports are harmless
            sticky_queue_schedule_to_start_timeout=TASK,
            max_concurrent_workflow_tasks=max(2, slots),
        )
        turns = Served(
            client,
            task_queue=queue_of(self._digest),
            activities=[TurnActivity(run, self.heartbeat).attempt],
            max_concurrent_activities=slots,
            # the server assigns requested tasks even to a frozen process: one open poll loses at most one
            # attempt
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(1),
            max_heartbeat_throttle_interval=beats,
            default_heartbeat_throttle_interval=beats,
            graceful_shutdown_timeout=timedelta(days=1),
        )
        async with lines:
            serving = asyncio.create_task(turns.run())
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    await turns.shutdown()
                await serving
            finally:
                stopping.cancel()

    async def aclose(self) -> None:
        """Drop the connection, which closes with its last user."""
        self._connected = None


class TurnActivity:
    """The Temporal activity: each call is one attempt to run a turn."""

    def __init__(self, run: RunTurn, heartbeat: float) -> None:
        self._run, self._heartbeat = run, heartbeat

    @activity.defn(name=ACTIVITY)
    async def attempt(self, turn: str, digest: str) -> str:
        """Run a turn and return how the attempt ended."""
        info, link = activity.info(), TurnLink()
        rank = int(info.scheduled_time.timestamp() * 1000) * 1000 + info.attempt
        order = Order(info.workflow_id or "", turn, digest)
        running = asyncio.ensure_future(self._run(order, rank, link))
        beside = [asyncio.ensure_future(one) for one in (self._beat(), _leave(link))]
        try:
            while not running.done():
                try:
                    await asyncio.wait({running})
                except asyncio.CancelledError:
                    _on_cancelled(link)
        finally:
            for one in beside:
                one.cancel()
        return _outcome(running)

    async def _beat(self) -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(BEATS * self._heartbeat / 2)


def _on_cancelled(link: TurnLink) -> None:
    """Handle a cancellation by the server: a person requested it, this worker shuts down, or another worker
    has the turn."""
    why = activity.cancellation_details()
    if why is not None and why.cancel_requested:
        link.cancelled.set()
    elif why is not None and why.worker_shutdown:
        link.leaving.set()
    else:
        link.lost.set()


async def _leave(link: TurnLink) -> None:
    await activity.wait_for_worker_shutdown()
    link.leaving.set()


def _outcome(running: asyncio.Future[str]) -> str:
    """Return how the attempt ended. Raises the error that makes the server retry: immediately after a
    hand-over, and also when the turn was lost, because a server that has reassigned it ignores this worker.
    The worker reports both in one line; the SDK logs no traceback for a benign error."""
    error = running.exception()
    if error is None and (ended := running.result()) != LOST:
        return ended
    error = error or OwnershipLost("another worker has the turn")
    expected = isinstance(error, HandOver | OwnershipLost)
    raise ApplicationError(
        one_line(str(error), 200),
        type=type(error).__name__,
        next_retry_delay=timedelta(milliseconds=1) if isinstance(error, HandOver) else None,
        category=ApplicationErrorCategory.BENIGN if expected else ApplicationErrorCategory.UNSPECIFIED,
    ) from None


def queue_of(digest: str) -> str:
    """Return the task queue for turns of a table."""
    return f"fsm-{digest}"


class _Unknown(Exception):
    """The workflow does not exist."""


async def _raising(error: RPCError) -> Any:
    raise error


def _namespace(name: str) -> Any:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

    return DescribeNamespaceRequest(namespace=name)


def describe_worker(identity: str, ago: float) -> str:
    """Describe a worker and when it last polled for a turn. Temporal lists workers for minutes after their
    end; for processes of this machine, the end is detected. A worker with no free slots does not poll."""
    pid, _, host = identity.partition("@")
    if host == socket.gethostname() and pid.isdecimal():
        try:
            os.kill(int(pid), 0)
        except (ProcessLookupError, OverflowError):
            return f"{identity} (has ended)"
        except PermissionError:  # the process belongs to another user
            pass
    return f"{identity} (asked {max(0.0, ago):.0f} s ago)"
