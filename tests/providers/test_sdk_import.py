"""An SDK is imported once, beside the event loops that wait for it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import ModuleType

import pytest

from fsm_agent import Agent
from fsm_agent.conversation.effects import Failure
from fsm_agent.providers.sdk_port import SdkPort, sdk_module
from fsm_agent.testing import ScriptedModel, text
from tests.helpers.ports import CHAT, Seen
from tests.helpers.processes import printed
from tests.helpers.slow_import import LIMIT, SlowImport, Ticker
from tests.helpers.waiting import until_so


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "answers"), [("cancelled", ["one"]), ("together", ["one", "two"])])
def test_the_loop_runs_on_while_the_sdk_is_imported(scene: str, answers: list[str], tmp_path: Path) -> None:
    """In a process of its own, where no SDK is loaded yet; only a loop that is free can open the gate."""
    env = {"HOME": str(tmp_path), "FSM_AGENT_HOME": str(tmp_path)}
    place = Path(__file__).parents[2]
    said = json.loads(printed("-m", "tests.helpers.slow_import", scene, cwd=place, env=env))
    assert said["opened"] == [True], "the gate was opened by the loop, and there was one import"
    assert said["waiting"], "no turn was over before the import was"
    assert (said["answers"], said["asked"]) == (answers, len(answers))
    assert said["longest"] < LIMIT / 2, "seconds in which the loop stood still"


def test_loops_of_different_threads_share_one_import() -> None:
    found: list[ModuleType] = []

    def one() -> None:
        found.append(asyncio.run(sdk_module("slow_shared")))

    with SlowImport("slow_shared") as gate:
        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert gate.begun.wait(LIMIT)
        gate.go.set()
        for thread in threads:
            thread.join()
    assert gate.opened == [True]
    assert len(found) == 4
    assert len({id(module) for module in found}) == 1


async def test_a_waiter_that_is_cancelled_leaves_the_import_to_the_others() -> None:
    with SlowImport("slow_left") as gate:
        waiters = [asyncio.ensure_future(sdk_module("slow_left")) for _ in range(3)]
        ticker = Ticker()
        await until_so(gate.begun.is_set, "the import")
        waiters[0].cancel()
        await ticker.more()
        gate.go.set()
        await asyncio.wait(waiters)
        ticker.stop()
        assert waiters[0].cancelled()
        assert waiters[1].result() is waiters[2].result()
        assert waiters[1].result().__name__ == "slow_left"
    assert gate.opened == [True]


def test_a_module_that_is_there_costs_no_change_of_thread() -> None:
    with SlowImport("slow_once") as gate:
        gate.go.set()
        module = asyncio.run(sdk_module("slow_once"))
        with pytest.raises(StopIteration) as stopped:
            sdk_module("slow_once").send(None)  # it never waits
    assert stopped.value.value is module


@pytest.mark.parametrize("error", [OSError("disk gone"), ModuleNotFoundError("no httpx3"), SystemExit(3)])
async def test_an_import_that_fails_is_told_to_all_who_wait_and_can_be_tried_again(
    error: BaseException,
) -> None:
    name = f"slow_{type(error).__name__.lower()}"
    with SlowImport(name) as gate:
        gate.raises.append(error)
        waiters = [asyncio.ensure_future(sdk_module(name)) for _ in range(2)]
        await until_so(gate.begun.is_set, "the import")
        gate.go.set()
        failures = await asyncio.gather(*waiters, return_exceptions=True)
        said = f"the SDK {name!r} cannot be imported: {type(error).__name__}: {error}"
        assert [str(failure) for failure in failures] == [said, said]
        assert {type(failure) for failure in failures} == {ImportError}
        assert (await sdk_module(name)).__name__ == name
    assert gate.opened == [True, True]


def test_a_turn_whose_model_does_not_get_ready_has_sent_nothing() -> None:
    class Unready(ScriptedModel):
        async def ready(self) -> None:
            raise ImportError("the SDK 'any' cannot be imported: OSError: disk gone")

    model = Unready([text("never")])
    result = Agent(model, toolsets=[]).run_conversation("go")
    assert (result.attempts, len(model.sent), result.turn_exit_reason) == (0, 0, "local_processing_error")
    assert "ImportError: the SDK 'any' cannot be imported: OSError: disk gone" in str(result.final_response)


def test_a_port_says_that_its_sdk_is_missing_and_sends_nothing() -> None:
    class Missing(CHAT.port):  # type: ignore[name-defined]
        sdk = "no_such_sdk"

    port: SdkPort = Missing("http://127.0.0.1:9/v1")
    failure = asyncio.run(port.call(CHAT.request(), Seen()))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.sent, failure.exception) == ("local", False, "ImportError")
    assert "the SDK 'no_such_sdk' cannot be imported: ModuleNotFoundError: No module named" in failure.message
