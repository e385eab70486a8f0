"""Events of turns as updates for an editor, and the questions for its user.

``EditorView`` has a method for each event that it shows, by the name of the event. Updates are sent in the
order of the events, from any thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acp.helpers import (
    SessionUpdate,
    start_tool_call,
    text_block,
    tool_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_tool_call,
)
from acp.interfaces import Client
from acp.schema import AllowedOutcome, PermissionOption, PermissionOptionKind, ToolCallUpdate

from fsm_agent.acp.content import (
    arguments_of,
    changes_of,
    code_block,
    inline,
    kind_of,
    locations_of,
    plan_of,
    raw,
    result_of_call,
    title_of,
)
from fsm_agent.approvals.question import visible
from fsm_agent.conversation.messages import ToolCall
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.runtime.events import Event
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support.texts import clean
from fsm_agent.toolsets.agent.todo import NAME as TODO

log = logging.getLogger(__name__)

EVENTS = ("stream_delta", "interim_assistant", "reasoning", "status", "event", "tool_start", "tool_complete")
"""What is shown of a turn."""
OPTIONS: Mapping[str, tuple[str, PermissionOptionKind]] = {
    "once": ("Allow once", "allow_once"),
    "session": ("Allow for this session", "allow_always"),
    "always": ("Always allow", "allow_always"),
    "deny": ("Deny", "reject_once"),
    "never": ("Never allow", "reject_always"),
}
"""What a person may answer to a question, with its words and the protocol's kind."""
NEITHER = "none"
"""Of the choices of a question."""


class EditorView:
    """The view of one session. ``session_id`` is the editor's name for it. Made in the event loop of the
    connection."""

    def __init__(self, client: Client, workdir: Path) -> None:
        self.session_id = ""
        self._client, self.workdir = client, workdir
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[SessionUpdate] = asyncio.Queue()
        self._sending = asyncio.ensure_future(self._send())
        self._open: dict[str, str] = {}  # calls that were shown and have not ended, with their tools
        self._ended: set[str] = set()  # of this turn: a turn that is continued tells of them again
        self._saying, self._said = "", ""  # since the last boundary, and before it

    # Telling

    def tell(self, update: SessionUpdate) -> None:
        """Send an update behind those before it; from any thread."""
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, update)

    async def settled(self) -> None:
        """Wait until all updates have been sent."""
        await asyncio.sleep(0)  # updates of this loop are in the queue then
        await self._waiting.join()

    def close(self) -> None:
        """Send nothing more."""
        self._sending.cancel()

    async def _send(self) -> None:
        while True:
            update = await self._waiting.get()
            try:
                await self._client.session_update(self.session_id, update)
            except Exception as error:  # the connection is gone, or this update cannot be written down
                log.debug("an update was not sent: %s", error)
            finally:
                self._waiting.task_done()

    def note(self, words: str) -> None:
        """Tell a line of ours. The protocol has no word for one, so it goes among the thoughts."""
        self.tell(update_agent_thought_text(f"\n· {clean(words)}\n"))

    # Events

    def hear(self, event: Event) -> None:
        """Show an event of a turn, if it is one for people."""
        if event.name in EVENTS:
            getattr(self, event.name)(*event.values)

    def stream_delta(self, text: str | None) -> None:
        """Send a piece of the answer."""
        if text is None:
            self._said, self._saying = self._saying, ""
        elif shown := clean(text) if self._saying else clean(text).lstrip("\n"):
            self._saying += shown
            self.tell(update_agent_message_text(shown))

    def interim_assistant(self, text: str) -> None:
        """Send the text beside calls, unless it was sent as it came."""
        self._rest(text)

    def reasoning(self, text: str) -> None:
        """Send a piece of the model's thoughts."""
        self.tell(update_agent_thought_text(clean(text)))

    def status(self, line: str) -> None:
        """Send a line for people."""
        self.note(line)

    def event(self, name: str, data: Mapping[str, Any]) -> None:
        """Send what delegated tasks do."""
        match name:
            case "child:start":
                self.note(f"task: {data['goal']}")
            case "child:end":
                self.note(f"task {data['status']}" + (f": {data['error']}" if data["error"] else ""))

    def tool_start(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Say that a call runs."""
        if call_id in self._ended:
            return
        if call_id in self._open:
            self.tell(update_tool_call(clean(call_id), status="in_progress"))
        else:
            self._show(call_id, name, arguments, asked=False)

    def tool_complete(
        self, call_id: str, name: str, arguments: Mapping[str, Any], result: str, status: str
    ) -> None:
        """Say how a call ended."""
        if call_id in self._ended:
            return
        if call_id not in self._open:
            self._show(call_id, name, arguments, asked=True)
        well = status == "ok"
        changed = name in ("write_file", "patch_file") and well  # the change is shown already
        content = None if changed else result_of_call(result if well else f"{status}: {result}")
        self._end(call_id, "completed" if well else "failed", content)
        if name == TODO and well and (plan := plan_of(result)) is not None:
            self.tell(plan)

    def finish(self, result: TurnResult) -> None:
        """Say what was not said yet of a turn that has ended."""
        for call_id in list(self._open):
            self._end(call_id, "failed", result_of_call("it was not run to its end"))
        self._ended.clear()
        self._rest(words_of_model(result))
        if not result.completed:
            reason = result.turn_exit_reason
            self.note(f"{reason.outcome.value}: {result.error or reason.value.replace('_', ' ')}")

    def _rest(self, text: str) -> None:
        said, whole = self._said.strip(), clean(text).strip()
        if whole and not said.endswith(whole):
            rest = whole.removeprefix(said).strip() if said else whole
            self.tell(update_agent_message_text(f"\n\n{rest}" if said else rest))
            self._said = whole

    def _show(self, call_id: str, name: str, arguments: Mapping[str, Any], *, asked: bool) -> None:
        self._open[call_id] = name
        self.tell(
            start_tool_call(
                clean(call_id),
                title_of(name, arguments),
                kind=kind_of(name),
                status="pending" if asked else "in_progress",
                content=changes_of(name, arguments, self.workdir, begins=True),
                locations=locations_of(arguments, self.workdir),
                raw_input=raw(dict(arguments)),
            )
        )

    def _end(self, call_id: str, status: Any, content: Any) -> None:
        self._open.pop(call_id, None)
        self._ended.add(call_id)
        self.tell(update_tool_call(clean(call_id), status=status, content=content))

    # Asking

    async def approve(self, item: Pending, call: ToolCall | None) -> str:
        """Ask whether a call may run, and return the answer; no answer is a refusal. ``call``: as it is in
        the transcript."""
        name, arguments = item.tool, {} if call is None else arguments_of(call)
        if item.call not in self._open:
            self._show(item.call, name, arguments, asked=True)
        shown = ToolCallUpdate(
            tool_call_id=clean(item.call),
            title=title_of(name, arguments),
            kind=kind_of(name),
            status="pending",
            content=[
                tool_content(text_block(code_block(item.asked))),
                *changes_of(name, arguments, self.workdir, begins=True),
            ],
            locations=locations_of(arguments, self.workdir),
            raw_input=raw(dict(arguments)),
        )
        options = [
            PermissionOption(option_id=one, name=OPTIONS[one][0], kind=OPTIONS[one][1])
            for one in OPTIONS
            if one in item.choices
        ]
        return await self._choice(shown, options) or "deny"

    async def clarify(self, question: str, choices: Sequence[str]) -> str | None:
        """Ask the person to choose, from any loop. ``None`` without choices: the protocol has no field to
        write in."""
        asking = asyncio.run_coroutine_threadsafe(self._clarify(question, choices), self._loop)
        return await asyncio.wrap_future(asking)

    async def _clarify(self, question: str, choices: Sequence[str]) -> str | None:
        if not choices:
            return None
        call_id = next((id for id, name in self._open.items() if name == "clarify"), "clarify")
        shown = ToolCallUpdate(
            tool_call_id=clean(call_id),
            title=inline(visible(question, lines=False)),
            kind="other",
            status="pending",
            content=[tool_content(text_block(code_block(visible(question))))],
        )
        options = [
            PermissionOption(option_id=str(number), name=clean(choice), kind="allow_once")
            for number, choice in enumerate(choices)
        ]
        options.append(PermissionOption(option_id=NEITHER, name="None of these", kind="reject_once"))
        answer = await self._choice(shown, options)
        return None if answer is None or answer == NEITHER else choices[int(answer)]

    async def _choice(self, shown: ToolCallUpdate, options: list[PermissionOption]) -> str | None:
        """The option that the person took; ``None`` when none was taken, or one that was not offered."""
        await self.settled()
        response = await self._client.request_permission(self.session_id, shown, options)
        outcome = response.outcome
        chosen = outcome.option_id if isinstance(outcome, AllowedOutcome) else None
        return chosen if chosen in {option.option_id for option in options} else None
