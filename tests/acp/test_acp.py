"""``fsm-agent acp`` with the client of the protocol's own library at the other end."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
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
from fsm_agent.approvals.waiting import answer
from fsm_agent.cli.acp import CommandLineHost
from fsm_agent.cli.options import CliOptions
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.pending import PendingItems
from fsm_agent.testing import ScriptedServer, call, silence, status, text, tools
from tests.helpers.waiting import PATIENCE, until_so

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'states'}"}
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
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=self.answers.pop(0))
        )

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
    to_editor, to_agent = await asyncio.open_connection(sock=ours), await asyncio.open_connection(sock=theirs)
    serving = asyncio.ensure_future(run_agent(server, to_editor[1], to_editor[0]))  # type: ignore[arg-type]
    agent = connect_to_agent(editor, to_agent[1], to_agent[0])  # type: ignore[arg-type]
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
    command = (sys.executable, "-m", "fsm_agent.cli", "acp", "--model", "local:m", "--base-url", server.url)
    environment = ENVIRONMENT | {"FSM_AGENT_HOME": str(home)}
    async with spawn_agent_process(editor, *command, env=environment) as (agent, started):  # type: ignore[arg-type]
        await agent.initialize(protocol_version=1)
        yield agent, started


def played(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * PATIENCE):
            await work()

    asyncio.run(limited())


@pytest.mark.behaviour("HOST-01")
def test_an_editor_is_told_what_the_callbacks_tell_and_asked_what_they_ask(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    script = [
        tools(
            call("todo", {"todos": [{"id": "1", "content": "Write", "status": "in_progress"}]}),
            text="Let me see.",
        ),
        tools(call("terminal", {"command": "echo '```' && echo hello"}), reasoning="I need the shell."),
        tools(call("write_file", {"path": "a.txt", "content": "two\n"})),
        text("Done."),
    ]
    editor = Editor(["session", "once"])

    async def work() -> None:
        with ScriptedServer(script) as server:
            async with process(editor, server, tmp_path / "home") as (agent, _):
                session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
                ended = await agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
        assert ended.stop_reason == "end_turn"
        assert ended.field_meta["fsm_agent"]["exit_reason"] == "text_response"

    played(work)
    assert "Let me see." in editor.text
    assert editor.text.endswith("Done.")
    assert "I need the shell." in editor.thoughts
    assert [(entry.content, entry.status) for entry in editor.of("plan")[-1].entries] == [
        ("Write", "in_progress")
    ]
    assert {one.name for one in editor.of("available_commands_update")[0].available_commands} == {
        "compact", "title", "undo",
    }  # fmt: skip
    begun = {one.tool_call_id: one for one in editor.of("tool_call")}
    assert [one.kind for one in begun.values()] == ["think", "execute", "edit"]
    written = list(begun.values())[2]
    assert written.locations[0].path == str(tmp_path / "a.txt")
    assert (written.content[0].old_text, written.content[0].new_text) == ("one\n", "two\n")
    assert written.raw_input == {"path": "a.txt", "content": "two\n"}
    assert {one.tool_call_id: one.status for one in editor.of("tool_call_update")} == dict.fromkeys(
        begun, "completed"
    )
    (asked, options), (edit, _) = editor.asked
    assert options == ["once", "session", "always", "deny", "never"]
    assert (edit.content[1].old_text, edit.content[1].new_text) == ("one\n", "two\n"), (
        "a diff with the question"
    )
    shown = asked.content[0].content.text
    assert shown.startswith("````\n")
    assert "command │ echo '```' && echo hello" in shown


def test_a_call_that_is_denied_does_not_run(tmp_path: Path) -> None:
    script = [tools(call("terminal", {"command": "touch there"})), text("Not done.")]
    for answers in (["deny"], ["whatever"], []):
        editor = Editor(answers)

        async def work(editor: Editor = editor) -> None:
            with ScriptedServer(script) as server:
                async with here(editor, options(server, tmp_path / "home")) as agent:
                    session = await agent.new_session(cwd=str(tmp_path), mcp_servers=[])
                    await agent.prompt(session_id=session.session_id, prompt=[text_block("go")])

        played(work)
        assert editor.of("tool_call_update")[-1].status == "failed"
        assert not (tmp_path / "there").exists()
        assert editor.text == "Not done."


def test_cancel_ends_the_turn_and_the_prompts_behind_it(tmp_path: Path) -> None:
    editor = Editor()

    async def work() -> None:
        with ScriptedServer([silence("It was a dark and "), text("Again.")]) as server:
            async with here(editor, options(server, tmp_path / "home")) as agent:
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                first = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[text_block("tell")]))
                await until_so(lambda: "dark" in editor.text)
                second = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[text_block("more")]))
                await asyncio.sleep(0.2)
                await agent.cancel(session_id=session)
                assert (await first).stop_reason == "cancelled"
                assert (await second).stop_reason == "cancelled"
                again = await agent.prompt(session_id=session, prompt=[text_block("again")])
                assert again.stop_reason == "end_turn"
                assert server.completions == 2

    played(work)
    assert editor.text.endswith("Again.")


def test_a_second_prompt_waits_for_the_first(tmp_path: Path) -> None:
    editor = Editor()

    async def work() -> None:
        with ScriptedServer([text("One."), text("Two.")]) as server:
            async with here(editor, options(server, tmp_path / "home")) as agent:
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                prompts = [
                    agent.prompt(session_id=session, prompt=[text_block(words)]) for words in ("a", "b")
                ]
                assert [one.stop_reason for one in await asyncio.gather(*prompts)] == ["end_turn"] * 2
        assert [body["messages"][-1]["content"] for body in server.bodies] == ["a", "b"]

    played(work)
    assert editor.text == "One.Two."


def test_a_session_is_loaded_after_kill_9_and_its_turn_gone_on_with(tmp_path: Path) -> None:
    before, after = Editor(["once"]), Editor()
    script = [
        tools(call("terminal", {"command": "echo hi"}), text="First this."), silence("Half"), text("The rest."),
    ]  # fmt: skip

    async def work() -> None:
        with ScriptedServer(script) as server:
            async with process(before, server, tmp_path / "home") as (agent, started):
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                asking = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[text_block("go on")]))
                await until_so(lambda: "Half" in before.text)
                os.kill(started.pid, signal.SIGKILL)
                with pytest.raises(ConnectionError):
                    await asking
            async with here(after, options(server, tmp_path / "home")) as agent:
                await agent.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
                assert [one.content.text for one in after.of("user_message_chunk")] == ["go on"]
                assert after.text == "First this."
                assert [(one.kind, one.status) for one in after.of("tool_call")] == [("execute", "completed")]
                assert "/resume goes on with it" in after.thoughts
                await until_so(lambda: bool(after.of("available_commands_update")))
                offered = after.of("available_commands_update")[-1].available_commands
                assert "resume" in {one.name for one in offered}
                ended = await agent.prompt(session_id=session, prompt=[text_block("/resume")])
                assert ended.stop_reason == "end_turn"

    played(work)
    assert after.text.endswith("The rest.")


def test_a_suspended_turn_ends_the_prompt_and_is_resumed_when_it_is_answered(tmp_path: Path) -> None:
    async def work() -> None:
        script = [tools(call("clarify", {"question": "Which?"})), text("blue it is")]
        with ScriptedServer(script) as server:
            given = replace(options(server, tmp_path), sets=("approval.unanswered=suspend",))
            async with here(editor := Editor(), given) as agent:
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                said = await agent.prompt(session_id=session, prompt=[text_block("paint it")])
                assert said.stop_reason == "end_turn"
                store = store_for(tmp_path)
                [item] = PendingItems(lambda: store.database).open()
                assert item.id in editor.thoughts + editor.text
                await asyncio.to_thread(answer, PendingItems(lambda: store.database), item.id, "blue")
                await agent.prompt(session_id=session, prompt=[text_block("/resume")])
                assert editor.text.endswith("blue it is")

    played(work)


def test_servers_that_the_editor_names_are_not_started(tmp_path: Path) -> None:
    editor, sign = Editor(), tmp_path / "started"
    named = McpServerStdio(name="theirs", command="touch", args=[str(sign)], env=[])

    async def work() -> None:
        with ScriptedServer([text("Hello.")]) as server:
            async with here(editor, options(server, tmp_path / "home")) as agent:
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[named])).session_id
                await agent.prompt(session_id=session, prompt=[text_block("hello")])

    played(work)
    assert "MCP servers that the editor named were not started: theirs" in editor.thoughts
    assert not sign.exists()


def test_what_goes_with_a_prompt_reaches_the_model(tmp_path: Path) -> None:
    prompt = [
        text_block("What is in "),
        resource_link_block("a.txt", f"file://{tmp_path}/a.txt"),
        text_block("?"),
        resource_block(embedded_text_resource("file:///b.txt", "the words of b")),
        image_block(PIXEL, "image/png"),
    ]

    async def work() -> None:
        with ScriptedServer([text("Much.")]) as server:
            async with here(Editor(), options(server, tmp_path / "home")) as agent:
                said = (await agent.initialize(protocol_version=1)).agent_capabilities.prompt_capabilities
                assert (said.image, said.audio, said.embedded_context) == (True, False, True)
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                await agent.prompt(session_id=session, prompt=prompt)
            [body] = server.bodies
            first, second, image = body["messages"][-1]["content"]
            assert first["text"] == f"What is in [a.txt]({tmp_path}/a.txt)?"
            assert "the words of b" in second["text"]
            assert image["image_url"]["url"].endswith(PIXEL)

    played(work)


def test_a_turn_that_failed_is_an_error_and_wrong_input_one_line(tmp_path: Path) -> None:
    async def refused(asked: Coroutine[Any, Any, Any], words: str) -> None:
        with pytest.raises(RequestError, match=words) as error:
            await asked
        assert "\n" not in str(error.value)

    async def work() -> None:
        with ScriptedServer([status(400)]) as server:
            async with here(editor := Editor(), options(server, tmp_path / "home")) as agent:
                await refused(agent.new_session(cwd="here", mcp_servers=[]), "working directory")
                await refused(agent.prompt(session_id="s-1", prompt=[text_block("x")]), "no such session")
                unknown = agent.load_session(cwd=str(tmp_path), session_id="s-1", mcp_servers=[])
                await refused(unknown, "no such session")
                session = (await agent.new_session(cwd=str(tmp_path), mcp_servers=[])).session_id
                sound = agent.prompt(session_id=session, prompt=[audio_block(WAVE, "audio/wav")])
                await refused(sound, "does not read audio")
                await refused(agent.prompt(session_id=session, prompt=[text_block(" ")]), "empty")
                await refused(
                    agent.prompt(session_id=session, prompt=[text_block("/undo x")]), "cannot be undone"
                )
                await refused(agent.prompt(session_id=session, prompt=[text_block("go")]), "400")
                assert "400" not in editor.text
                undone = await agent.prompt(session_id=session, prompt=[text_block("/undo")])
                assert undone.stop_reason == "end_turn"

    played(work)


@pytest.mark.parametrize(
    ("arguments", "given", "says"),
    [
        ((), None, "an editor starts this command"),
        ((), b"[]\n", "not the Agent Client Protocol"),
        (("--model", "nobody:m"), b"", "nobody"),
        (("--set", "x=1"), b"", "x"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, arguments: Sequence[str], given: bytes | None, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fsm_agent.cli", "acp", *arguments],
        **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),  # type: ignore[call-overload]
        capture_output=True, timeout=PATIENCE, env=ENVIRONMENT, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode().splitlines()[-1]
    assert b"Traceback" not in done.stderr
