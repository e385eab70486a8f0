"""Threat: an answer that was meant for something else. Each names its question and holds for that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import tool
from fsm_agent.approvals.rules import Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.debug import Debugger, Status
from fsm_agent.debug.core.pending_request import call_form
from fsm_agent.debug.core.remote import read_held
from fsm_agent.errors import ConfigError
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.sessions.store import Store
from fsm_agent.settings import ApprovalSettings
from fsm_agent.support.threads import Interrupt
from fsm_agent.testing import FakeClock, call, text, tools
from tests.debug.test_dap import asked_number
from tests.helpers.dap_editor import Refused, editing, workshop_of
from tests.helpers.waiting import PATIENCE, until
from tests.security.test_authority import Desk

TWICE = [tools(call("danger", {"name": "a"}, "c1")), tools(call("danger", {"name": "a"}, "c2")), text("end")]


def asked(desk: Desk) -> Debugger:
    """A debugger whose turn waits for an answer."""
    debugger = Debugger.of(desk.agent.store, desk.agent.start("go"))
    debugger.order("continue")
    assert asyncio.run(debugger.settled(PATIENCE)).phase == "waiting"
    return debugger


def answered(debugger: Debugger, said: str) -> Status:
    (held,) = debugger.status.held
    debugger.order("answer", {"id": held["id"], "said": said})
    return ends_or_asks(debugger, held["id"])


def ends_or_asks(debugger: Debugger, before: int) -> Status:
    def asks(status: Status) -> bool:
        return status.phase == "ended" or [one["id"] for one in status.held] not in ([], [before])

    until(lambda: asks(debugger.status), "another question, or the end")
    return debugger.status


def test_a_yes_of_the_debugger_for_the_session_is_kept_as_any_person_s(tmp_path: Path) -> None:
    """Under the pattern that was said with the question, and for another process too."""
    desk = Desk(tmp_path, *TWICE, session_id="s-own")
    debugger = asked(desk)
    (held,) = debugger.status.held
    assert held["question"]["remembered"] == 'danger({"name":"a"})'
    assert answered(debugger, "session").phase == "ended"
    assert desk.ran == ["danger a", "danger a"]
    debugger.close()
    store = desk.agent.store
    (kept,) = Grants(lambda: store.database).of_sessions()
    assert (kept.pattern.text, kept.session) == ('danger({"name":"a"})', "s-own")
    desk.agent.close()
    later = Desk(tmp_path, tools(call("danger", {"name": "a"}, "c3")), session_id="s-own")
    later.agent.chat("again")
    assert later.ran == ["danger a"]


def test_a_yes_of_the_debugger_for_once_is_for_one_call(tmp_path: Path) -> None:
    desk = Desk(tmp_path, *TWICE)
    debugger = asked(desk)
    assert answered(debugger, "once").phase == "waiting"
    assert answered(debugger, "deny").phase == "ended"
    assert desk.ran == ["danger a"]
    debugger.close()


def test_a_late_answer_finds_no_other_question(tmp_path: Path) -> None:
    desk = Desk(tmp_path, *TWICE)
    debugger = asked(desk)
    first = debugger.status.held[0]["id"]
    answered(debugger, "once")
    with pytest.raises(ConfigError, match="nothing waits for an answer under this number"):
        debugger.order("answer", {"id": first, "said": "once"})
    numbers = {first}
    debugger.close()
    for number in range(3):
        other = asked(Desk(tmp_path / str(number), *TWICE))
        numbers |= {one["id"] for one in other.status.held}
        other.close()
    assert len(numbers) > 2, "another debugger counts from elsewhere"


def test_what_cannot_be_remembered_is_answered_once(tmp_path: Path) -> None:
    half = {"name": "\ud800"}
    desk = Desk(tmp_path, tools(call("danger", half, "c1")), text("end"))
    debugger = asked(desk)
    (held,) = debugger.status.held
    assert held["question"]["remembered"] == ""
    words = "this call of danger cannot be remembered; given: session; allowed: once, deny"
    with pytest.raises(ConfigError, match=words):
        debugger.order("answer", {"id": held["id"], "said": "session"})
    assert answered(debugger, "once").phase == "ended"
    debugger.close()


@pytest.mark.parametrize("said", ["session", "always", "never"])
def test_nor_does_a_callback_remember_it(store: Store, said: str) -> None:
    """A name with a wildcard would match other tools, too."""
    grants = Grants(lambda: store.database)

    async def asks(name: str, **callbacks: Any) -> bool:
        approvals = Approvals(
            Callbacks(callbacks), FakeClock(), ApprovalSettings(), 0.01, grants=grants, workdir="/"
        )
        answer: Any = await approvals.ask(AskApproval("c1", name, {}), Interrupt())
        return bool(answer.granted)

    assert asyncio.run(asks("dr*", approval=lambda asked: said)) is (said != "never")
    assert grants.all() == []
    assert asyncio.run(asks("drop")) is asyncio.run(asks("dr*")) is False


def test_an_answer_in_an_editor_names_what_it_answers(tmp_path: Path) -> None:
    @tool(approval="ask")
    def remove(key: str) -> str:
        """Remove."""
        return f"removed {key}"

    script = [tools(call("remove", {"key": "a"})), tools(call("remove", {"key": "b"})), text("done")]
    with editing(workshop_of(tmp_path, script)) as editor:
        editor.begin(task="tidy up")
        first = asked_number(editor.stopped())
        for wrong in (":approve", ":approve session", ":deny", ":approve 1", f":approve {first} often"):
            with pytest.raises(Refused, match=r"an answer begins with the number|once or for the session"):
                editor.evaluate(wrong, context="repl")
        editor.evaluate(f":approve {first}", context="repl")
        second = asked_number(editor.stopped())
        with pytest.raises(Refused, match="an answer begins with the number"):
            editor.evaluate(f":approve {first}", context="repl")
        editor.evaluate(f":deny {second}", context="repl")
        editor.event("terminated")
        told = "\n".join(editor.outputs())
        assert "    key │ a" in told
        assert f":approve {first} session would remember │ remove(" in told


def test_what_another_process_says_that_a_person_should_read_is_not_believed() -> None:
    request = AskApproval("c1", "terminal", {"command": "rm -r ~"}, "terminal(rm -r ~)")
    said: dict[str, Any] = {"id": 1, "kind": "approval", **call_form(request)}
    said["question"] = call_form(AskApproval("c1", "terminal", {"command": "ls"}))["question"]
    assert read_held(said)["question"]["parts"][0]["shown"] == "rm -r ~"
