"""``fsm-agent acp`` with the client of the protocol's own library at the other end."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from acp import connect_to_agent, run_agent
from acp.exceptions import RequestError
from acp.helpers import (
    audio_block,
    embedded_text_resource,
    image_block,
    resource_block,
    resource_link_block,
    text_block,
)
from acp.schema import (
    AllowedOutcome,
    DeniedOutcome,
    McpServerStdio,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallUpdate,
)
from acp.stdio import spawn_agent_process

from fsm_agent.acp import EditorServer
from fsm_agent.approvals.service import answer
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.serve import CommandLineHost
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.sessions.store.queued import to_be_run
from fsm_agent.testing import ScriptedServer, call, silence, status, text, tools
from tests.helpers.processes import environment, ran
from tests.helpers.waiting import PATIENCE, until_so

pytestmark = pytest.mark.anyio
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8)).decode()
WAVE = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVE").decode()


class Editor:
    """What an editor shows. ``answers`` are taken one for each question; an option that is not offered is no
    answer."""

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.answers = list(answers)
        self.updates: list[Any] = []
        self.asked: list[tuple[ToolCallUpdate, list[str]]] = []

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, [option.option_id for option in options]))
        if not self.answers:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = AllowedOutcome(outcome="selected", option_id=self.answers.pop(0))
        return RequestPermissionResponse(outcome=chosen)

    def on_connect(self, conn: Any) -> None: ...

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    @property
    def text(self) -> str:
        return "".join(update.content.text for update in self.of("agent_message_chunk"))

    @property
    def thoughts(self) -> str:
        return "".join(update.content.text for update in self.of("agent_thought_chunk"))


def options(server: ScriptedServer, home: Path) -> CliOptions:
    return CliOptions("local:m", server.url, home=str(home), source="acp")


@asynccontextmanager
async def here(editor: Editor, given: CliOptions) -> AsyncIterator[Any]:
    """The server in this process, behind a socket."""
    ours, theirs = socket.socketpair()
    server = EditorServer(CommandLineHost(given))
    await server.open()
    to_editor, to_agent = await asyncio.open_connection(sock=ours), await asyncio.open_connection(sock=theirs)
    serving = asyncio.ensure_future(run_agent(server, to_editor[1], to_editor[0], use_unstable_protocol=True))
    agent = connect_to_agent(editor, to_agent[1], to_agent[0], use_unstable_protocol=True)
    try:
        await agent.initialize(protocol_version=1)
        yield agent
    finally:
        await agent.close()
        to_agent[1].close()
        await serving
        await server.aclose()
        to_editor[1].close()
        await asyncio.gather(to_agent[1].wait_closed(), to_editor[1].wait_closed(), return_exceptions=True)


@asynccontextmanager
async def process(
    editor: Editor, server: ScriptedServer, home: Path
) -> AsyncIterator[tuple[Any, asyncio.subprocess.Process]]:
    """The command, as an editor starts it."""
    command = (sys.executable, "-m", "fsm_agent", "acp", "--model", "local:m", "--base-url", server.url)
    env = environment(FSM_AGENT_HOME=str(home))
    async with spawn_agent_process(editor, *command, env=env) as (agent, started):
        await agent.initialize(protocol_version=1)
        yield agent, started


class Talk:
    """A session that an editor has opened with the server in this process."""

    def __init__(self, agent: Any, server: ScriptedServer, session: str) -> None:
        self.agent, self.server, self.session = agent, server, session

    async def prompt(self, *blocks: Any) -> Any:
        prompt = [text_block(one) if isinstance(one, str) else one for one in blocks]
        return await self.agent.prompt(session_id=self.session, prompt=prompt)


@asynccontextmanager
async def talk(
    folder: Path, editor: Editor, *script: Any, servers: Sequence[Any] = (), **more: Any
) -> AsyncIterator[Talk]:
    async with asyncio.timeout(4 * PATIENCE):
        with ScriptedServer(script) as server:
            async with here(editor, replace(options(server, folder / "home"), **more)) as agent:
                made = await agent.new_session(cwd=str(folder), mcp_servers=list(servers))
                yield Talk(agent, server, made.session_id)


@pytest.mark.behaviour("HOST-01")
async def test_an_editor_is_told_what_the_callbacks_tell_and_asked_what_they_ask(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    todo = {"id": "1", "content": "Write", "status": "in_progress"}
    script = [
        tools(call("todo", {"todos": [todo]}), text="Let me see."),
        tools(call("terminal", {"command": "echo '```' && echo hello"}), reasoning="I need the shell."),
        tools(call("write_file", {"path": "a.txt", "content": "two\n"})),
        text("Done."),
    ]
    editor = Editor(["session", "once"])
    with ScriptedServer(script) as server:
        async with process(editor, server, tmp_path / "home") as (agent, _):
            session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
            ended = await agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
    assert ended.stop_reason == "end_turn"
    assert ended.field_meta["fsm_agent"]["exit_reason"] == "text_response"
    assert "Let me see." in editor.text
    assert editor.text.endswith("Done.")
    assert "I need the shell." in editor.thoughts
    (entry,) = editor.of("plan")[-1].entries
    assert (entry.content, entry.status) == ("Write", "in_progress")
    commands = {one.name for one in editor.of("available_commands_update")[0].available_commands}
    assert commands == {"compact", "title", "undo"}
    begun = {one.tool_call_id: one for one in editor.of("tool_call")}
    assert [one.kind for one in begun.values()] == ["think", "execute", "edit"]
    written = list(begun.values())[2]
    assert written.locations[0].path == str(tmp_path / "a.txt")
    assert (written.content[0].old_text, written.content[0].new_text) == ("one\n", "two\n")
    assert written.raw_input == {"path": "a.txt", "content": "two\n"}
    ends = {one.tool_call_id: one.status for one in editor.of("tool_call_update")}
    assert ends == dict.fromkeys(begun, "completed")
    (asked, offered), (edit, _) = editor.asked
    assert offered == ["once", "session", "always", "deny", "never"]
    # a diff with the question
    assert (edit.content[1].old_text, edit.content[1].new_text) == ("one\n", "two\n")
    shown = asked.content[0].content.text
    assert shown.startswith("````\n")
    assert "command │ echo '```' && echo hello" in shown


@pytest.mark.parametrize("answers", [["deny"], ["whatever"], []])
async def test_a_call_that_is_denied_does_not_run(tmp_path: Path, answers: list[str]) -> None:
    script = [tools(call("terminal", {"command": "touch there"})), text("Not done.")]
    async with talk(tmp_path, editor := Editor(answers), *script) as session:
        await session.prompt("go")
    assert editor.of("tool_call_update")[-1].status == "failed"
    assert not (tmp_path / "there").exists()
    assert editor.text == "Not done."


async def test_cancel_ends_the_turn_and_the_prompts_behind_it(tmp_path: Path) -> None:
    script = [silence("It was a dark and "), text("Again.")]
    async with talk(tmp_path, editor := Editor(), *script) as session:
        first = asyncio.ensure_future(session.prompt("tell"))
        await until_so(lambda: "dark" in editor.text)
        second = asyncio.ensure_future(session.prompt("more"))
        await asyncio.sleep(0)  # it is on its way, before the other order
        await session.agent.cancel(session_id=session.session)
        assert [(await one).stop_reason for one in (first, second)] == ["cancelled"] * 2
        assert (await session.prompt("again")).stop_reason == "end_turn"
        assert session.server.completions == 2
    assert editor.text.endswith("Again.")


async def test_a_second_prompt_waits_for_the_first(tmp_path: Path) -> None:
    async with talk(tmp_path, editor := Editor(), text("One."), text("Two.")) as session:
        ended = await asyncio.gather(session.prompt("a"), session.prompt("b"))
        assert [one.stop_reason for one in ended] == ["end_turn"] * 2
        assert [body["messages"][-1]["content"] for body in session.server.bodies] == ["a", "b"]
    assert editor.text == "One.Two."


@pytest.mark.slow
async def test_a_session_loads_after_kill_9_and_its_turn_continues(tmp_path: Path) -> None:
    before, after = Editor(["once"]), Editor()
    first = tools(call("terminal", {"command": "echo hi"}), text="First this.")
    with ScriptedServer([first, silence("Half"), text("The rest.")]) as server:
        async with process(before, server, tmp_path / "home") as (agent, started):
            session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
            asking = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[text_block("continue")]))
            await until_so(lambda: "Half" in before.text)
            os.kill(started.pid, signal.SIGKILL)
            with pytest.raises(ConnectionError):
                await asking
        async with here(after, options(server, tmp_path / "home")) as agent:
            await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
            assert [one.content.text for one in after.of("user_message_chunk")] == ["continue"]
            assert after.text == "First this."
            assert [(one.kind, one.status) for one in after.of("tool_call")] == [("execute", "completed")]
            assert "/resume continues it" in after.thoughts
            await until_so(lambda: bool(after.of("available_commands_update")))
            offered = after.of("available_commands_update")[-1].available_commands
            assert "resume" in {one.name for one in offered}
            ended = await agent.prompt(session_id=session, prompt=[text_block("/resume")])
            assert ended.stop_reason == "end_turn"
    assert after.text.endswith("The rest.")


async def test_a_suspended_turn_ends_the_prompt_and_is_resumed_when_it_is_answered(tmp_path: Path) -> None:
    script = [tools(call("clarify", {"question": "Which?"})), text("blue it is")]
    suspends = ("approval.unanswered=suspend",)
    async with talk(tmp_path, editor := Editor(), *script, sets=suspends) as session:
        assert (await session.prompt("paint it")).stop_reason == "end_turn"
        store = store_for(tmp_path / "home")
        [item] = PendingItems(lambda: store.database).open()
        assert item.id in editor.thoughts + editor.text
        await asyncio.to_thread(answer, PendingItems(lambda: store.database), item.id, "blue")
        await session.prompt("/resume")
    assert editor.text.endswith("blue it is")


async def test_the_sessions_of_a_folder_are_listed_also_by_another_process(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with ScriptedServer([text("Hello."), text("Hello again.")]) as server:
        given = options(server, tmp_path / "home")
        sessions = []
        async with here(Editor(), given) as agent:
            said = (await agent.initialize(protocol_version=1)).agent_capabilities.session_capabilities
            assert (said.list is not None, said.fork is not None) == (True, True)
            for folder in (first, second):
                sessions.append((await agent.new_session(cwd=str(folder), mcp_servers=[])).session_id)
                await agent.prompt(session_id=sessions[-1], prompt=[text_block(f"hello {folder.name}")])
            await agent.new_session(cwd=str(first), mcp_servers=[])  # nothing is said in it
        async with here(Editor(), given) as agent:
            listed = (await agent.list_sessions()).sessions
            assert [one.session_id for one in listed] == sessions[::-1]
            [one] = (await agent.list_sessions(cwd=f"{first}/")).sessions
            assert (one.session_id, one.cwd, one.title) == (sessions[0], str(first), "hello first")
            assert datetime.fromisoformat(one.updated_at).tzinfo is not None
            await agent.load_session(cwd=str(second), session_id=sessions[0], mcp_servers=[])
            for wrong in ({"cwd": "first"}, {"cursor": "2"}):
                with pytest.raises(RequestError, match=r"the whole path|no more than one page"):
                    await agent.list_sessions(**wrong)


async def test_a_session_is_forked_and_the_first_one_stays_as_it_is(tmp_path: Path) -> None:
    script = [text("Hello."), text("Blue."), text("Red."), silence("Half")]
    async with talk(tmp_path, editor := Editor(), *script) as session:
        await session.prompt("hello")
        agent, cwd = session.agent, str(tmp_path)
        other = (await agent.fork_session(session_id=session.session, cwd=cwd)).session_id
        assert other != session.session
        await session.prompt("blue?")
        await agent.prompt(session_id=other, prompt=[text_block("red?")])
        said = [[row["content"] for row in body["messages"][1:]] for body in session.server.bodies]
        assert said[1:] == [["hello", "Hello.", "blue?"], ["hello", "Hello.", "red?"]]
        assert len((await agent.list_sessions(cwd=cwd)).sessions) == 2
        for wrong in ("s-1", (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id):
            with pytest.raises(RequestError, match="no such session"):
                await agent.fork_session(session_id=wrong, cwd=cwd)
        asking = asyncio.ensure_future(agent.prompt(session_id=other, prompt=[text_block("again")]))
        await until_so(lambda: editor.text.endswith("Half"))
        with pytest.raises(RequestError, match="the session is busy"):
            await agent.fork_session(session_id=other, cwd=cwd)
        await agent.cancel(session_id=other)
        await asking


async def test_servers_that_the_editor_names_are_not_started(tmp_path: Path) -> None:
    editor, sign = Editor(), tmp_path / "started"
    named = McpServerStdio(name="theirs", command="touch", args=[str(sign)], env=[])
    async with talk(tmp_path, editor, text("Hello."), servers=[named]) as session:
        await session.prompt("hello")
    assert "MCP servers that the editor named were not started: theirs" in editor.thoughts
    assert not sign.exists()


async def test_what_goes_with_a_prompt_reaches_the_model(tmp_path: Path) -> None:
    link = resource_link_block("a.txt", f"file://{tmp_path}/a.txt")
    inside = resource_block(embedded_text_resource("file:///b.txt", "the words of b"))
    async with talk(tmp_path, Editor(), text("Much.")) as session:
        said = (await session.agent.initialize(protocol_version=1)).agent_capabilities.prompt_capabilities
        assert (said.image, said.audio, said.embedded_context) == (True, False, True)
        await session.prompt("What is in ", link, "?", inside, image_block(PIXEL, "image/png"))
        [body] = session.server.bodies
    first, second, image = body["messages"][-1]["content"]
    assert first["text"] == f"What is in [a.txt]({tmp_path}/a.txt)?"
    assert "the words of b" in second["text"]
    assert image["image_url"]["url"].endswith(PIXEL)


async def test_a_turn_that_failed_is_an_error_and_wrong_input_one_line(tmp_path: Path) -> None:
    async def refused(asked: Coroutine[Any, Any, Any], words: str) -> None:
        with pytest.raises(RequestError, match=words) as error:
            await asked
        assert "\n" not in str(error.value)

    async with talk(tmp_path, editor := Editor(), status(400)) as session:
        agent = session.agent
        await refused(agent.new_session(cwd="here", mcp_servers=[]), "working directory")
        await refused(agent.prompt(session_id="s-1", prompt=[text_block("x")]), "no such session")
        unknown = agent.load_session(cwd=str(tmp_path), session_id="s-1", mcp_servers=[])
        await refused(unknown, "no such session")
        await refused(session.prompt(audio_block(WAVE, "audio/wav")), "does not read audio")
        await refused(session.prompt(" "), "empty")
        await refused(session.prompt("/undo x"), "cannot be undone")
        await refused(session.prompt("go"), "400")
        assert "400" not in editor.text
        assert (await session.prompt("/undo")).stop_reason == "end_turn"


@pytest.mark.slow
def test_a_line_that_is_no_message_is_answered_and_the_next_one_served(tmp_path: Path) -> None:
    wrong = {
        "[]": -32600, "3": -32600, "null": -32600, '"initialize"': -32600, "{}": -32600, '{"id": 1}': -32600,
        '{"id": [], "result": 1}': -32600, '{"id": 0, "error": "no"}': -32600, '{"id": 1, "method": null}': -32600,
        "hello": -32700, "{": -32700, "[" * 100_000: -32700, "\x00": -32700,
    }  # fmt: skip
    hello = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": 1}}
    lines = [*wrong, "", json.dumps(hello)]
    done = ran("-m", "fsm_agent", "acp", input="\n".join(lines) + "\n", cwd=tmp_path)
    *refusals, last = map(json.loads, done.stdout.splitlines())
    assert [(one["id"], one["error"]["code"]) for one in refusals] == [
        (None, code) for code in wrong.values()
    ]
    assert (last["id"], last["result"]["protocolVersion"]) == (7, 1)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


async def test_the_next_message_answers_a_question_without_choices(tmp_path: Path) -> None:
    script = [tools(call("clarify", {"question": "Which color?"})), text("blue it is")]
    async with talk(tmp_path, editor := Editor(), *script) as session:
        assert (await session.prompt("paint it")).stop_reason == "end_turn"
        assert "your next message answers it\nWhich color?" in editor.thoughts
        await session.prompt("blue")
        assert "blue" in session.server.bodies[-1]["messages"][-1]["content"]
        assert session.server.completions == 2
    assert editor.text == "blue it is"
    [_] = editor.of("tool_call")
    assert [one.status for one in editor.of("tool_call_update")] == ["completed"]


async def test_an_approval_may_come_through_another_door(tmp_path: Path) -> None:
    class Slow(Editor):
        async def request_permission(self, *given: Any, **more: Any) -> RequestPermissionResponse:
            store = store_for(tmp_path / "home")
            [item] = PendingItems(lambda: store.database).open()
            await asyncio.to_thread(answer, PendingItems(lambda: store.database), item.id, "once")
            return await super().request_permission(*given, **more)

    script = [tools(call("terminal", {"command": "touch there"})), text("Done.")]
    async with talk(tmp_path, editor := Slow(["deny"]), *script) as session:
        await session.prompt("go")
    assert (tmp_path / "there").exists()
    assert editor.text == "Done."


async def test_a_message_steers_the_turn_where_the_settings_say_so(tmp_path: Path) -> None:
    class Talkative(Editor):
        async def request_permission(self, *given: Any, **more: Any) -> RequestPermissionResponse:
            self.second = asyncio.ensure_future(session.prompt("and be quick"))
            await session.agent.initialize(protocol_version=1)  # the prompt before it has arrived, too
            return await super().request_permission(*given, **more)

    script = [tools(call("terminal", {"command": "echo hi"})), text("Quick.")]
    steers = ("interrupt.second_message=steer",)
    async with talk(tmp_path, editor := Talkative(["once"]), *script, sets=steers) as session:
        assert (await session.prompt("go")).stop_reason == "end_turn"
        assert (await editor.second).stop_reason == "end_turn"
        assert session.server.completions == 2
        assert "and be quick" in str(session.server.bodies[-1])
    assert editor.text == "Quick."


async def test_the_calls_of_a_delegated_task_are_asked_and_shown(tmp_path: Path) -> None:
    script = [
        tools(call("delegate_task", {"goal": "write it"})),
        tools(call("write_file", {"path": "b.txt", "content": "two\n"})), text("written"), text("Done."),
    ]  # fmt: skip
    asks = ("delegation.approvals=ask",)
    async with talk(tmp_path, editor := Editor(["once"]), *script, sets=asks) as session:
        await session.prompt("go")
    [(asked, _)] = editor.asked
    assert asked.raw_input == {"path": "b.txt", "content": "two\n"}
    assert asked.content[1].new_text == "two\n"
    assert (tmp_path / "b.txt").read_text() == "two\n"
    assert editor.text.endswith("Done.")


async def test_a_turn_is_left_where_it_is_when_the_editor_leaves(tmp_path: Path) -> None:
    with ScriptedServer([silence("Half")]) as server:
        async with asyncio.timeout(PATIENCE):
            async with here(editor := Editor(), options(server, tmp_path / "home")) as agent:
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                asking = asyncio.ensure_future(
                    agent.prompt(session_id=session, prompt=[text_block("continue")])
                )
                await until_so(lambda: "Half" in editor.text)
        with pytest.raises(ConnectionError):
            await asking
    store = store_for(tmp_path / "home")
    assert [row.ended for row in Turns(store.database).recent(5)] == [None]
    assert to_be_run(store, store.now() + 1) == []  # and no worker takes it
