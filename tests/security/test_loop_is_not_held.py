"""Threat: a text that holds the event loop, and with it every other turn of the process. A megabyte of each evil shape
goes through each door that text from outside comes in by; between two looks of a watchdog no more than ``HELD`` seconds
of the processor's time may pass."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import pytest
from mcp_types import CallToolResult, TextContent
from PIL import Image

from fsm_agent.approvals.rules import Grant, Grants
from fsm_agent.approvals.service import Approvals
from fsm_agent.approvals.shell import MAX_COMMAND
from fsm_agent.composition.model_caller import StreamAccumulator
from fsm_agent.conversation.arguments import parse
from fsm_agent.conversation.compaction import summary_prompt
from fsm_agent.conversation.effects import AskApproval, RunTool, ToolOutcome
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import ImagePart, kind_of
from fsm_agent.providers.chat_reply import ChatReply, whole_reply
from fsm_agent.providers.failures import http_failure
from fsm_agent.providers.reply_values import ERROR_BYTES
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.settings import Settings, Web
from fsm_agent.support import untrusted
from fsm_agent.support.redaction import mask
from fsm_agent.support.texts import split_reasoning, without_memory_block
from fsm_agent.support.threads import Interrupt
from fsm_agent.support.untrusted import MAX_SCANNED, risks, wrap_untrusted
from fsm_agent.testing import FakeClock
from fsm_agent.tools import tool
from fsm_agent.tools.result import text_of_error
from fsm_agent.tools.runner import ToolRunner
from fsm_agent.toolsets.mcp.results import result_of
from fsm_agent.toolsets.web import Fetched, Fetcher, Reader, text_of_page
from fsm_agent_states.logic import facts
from fsm_agent_states.logic.running import check_calls
from tests.helpers.sample import sampled

SIZE = 1_000_000
HELD = 0.05
COUNTING, COPYING = 0.0034, 0.0075
"""Seconds of the processor that the two parts of ``slowness`` take on the machine for which ``HELD`` is said, with nothing
beside it. Where they take longer, because the machine is another or shares its caches and its memory, everything does."""
PUMPS = (
    "a", " ", "\n", "\t", "0", "1,", "é", "\u0301\u0316", "\ufdfa", "\u200b", "a\u200ba", "\u202e",
    "\u05d0\u202a\n", "\U0001f3f4\U000e0041", "<", "&", "`", "```\n", "```\n<think>\n", "<think>\n",
    "<think>x</think>\n", "<memory-context>", "[", "{", "[]", '{"a":', "\\", "\\n", '"', "eyJ-", "-eyJ",
    "eyJ-npm_" + 30 * "a" + "-", "sk-", "sk-abcdef ", "token=a", "://a:", "A_", "-----BEGIN PRIVATE KEY-----",
    "cookie: ", "cookie ", "basic a", "\x1b]", "\x1b[0", "\x1b[0m", "a\x08", "a\r", "ignore all the ",
    "curl $a", "cat .env | ", "<a style='", "<title>", "<script>", "<system>\n", "-H 'authorization: ",
    "${a:-",
)  # fmt: skip


def slowness() -> float:
    """How many times longer than there it takes to count, or to copy a megabyte of the widest characters."""
    began = time.process_time()
    for _ in range(300_000):
        pass
    counted = time.process_time()
    wide = "\U0001f3f4" * SIZE
    wide.encode().decode().lower().count("[")
    return max(1.0, (counted - began) / COUNTING, (time.process_time() - counted) / COPYING)


async def ticking(work: Callable[[], Awaitable[Any]]) -> float:
    """Run the work; return the longest time of the processor between two turns of the loop."""
    longest, ended = 0.0, False

    async def look() -> None:
        nonlocal longest
        last = time.process_time()
        while not ended:
            await asyncio.sleep(0)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    watchdog = asyncio.ensure_future(look())
    await asyncio.sleep(0)
    try:
        await work()
        await asyncio.sleep(0)
    finally:
        ended = True
        await watchdog
    return longest


def sink() -> StreamAccumulator:
    return StreamAccumulator(FakeClock(), Callbacks({}))


def streamed(text: str, field: str) -> None:
    shown = sink()
    reply = ChatReply(shown)
    reply.feed({"choices": [{"index": 0, "delta": {field: text}}]})
    reply.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    reply.end()
    shown.close()


async def called(text: str) -> None:
    """Each form is a call of its own; what writes the last one is no part of it."""
    for arguments in (text, '{"a":' + text, json.dumps({"a": text})):
        await asyncio.sleep(0)
        parse(arguments)


def scanned(text: str) -> None:
    untrusted.scan.cache_clear()
    risks(text)


def refused(text: str) -> None:
    """An error as it is after ``ERROR_BYTES``."""
    said = text[:ERROR_BYTES]
    failure = http_failure(400, {"error": {"message": said}}, {"retry-after": said[:100]}, 0.0)
    facts.window_from(failure.detail)
    facts.output_cap_from(failure.detail, None, 1)
    facts.prompt_tokens_from(failure.detail)


def page(kind: str) -> Callable[[str], Awaitable[None]]:
    async def read(text: str) -> None:
        body = text.encode("utf-8", "replace")[:SIZE]
        fetched = Fetched("http://a/", 200, "OK", kind, body, False)

        class Served(Fetcher):
            async def fetch(self, address: str) -> Fetched:
                return fetched

        await Reader(Served(Web())).web_fetch("http://a/")

    return read


def _no_database() -> NoReturn:
    raise AssertionError("nothing is stored here")


async def asked(text: str) -> None:
    """The longest command that a shell takes, with no person there to answer."""

    class NoGrants(Grants):
        def all(self) -> list[Grant]:
            return []

    given: Any = {"grants": NoGrants(_no_database), "workdir": "/"}
    nobody = Approvals(Callbacks({}), FakeClock(), Settings().approval, 0.01, **given)
    question = AskApproval("c1", "terminal", {"command": text[: MAX_COMMAND // 8]})
    answer: Any = await nobody.ask(question, Interrupt())
    assert not answer.granted


def told_by_a_server(text: str) -> None:
    both = CallToolResult(content=[TextContent(type="text", text=text)], structured_content={"result": text})
    result_of(both)


DOORS: dict[str, Callable[[str], Any]] = {
    "text of a reply": lambda text: streamed(text, "content"),
    "reasoning of a reply": lambda text: streamed(text, "reasoning"),
    "a whole reply": lambda text: whole_reply({"choices": [{"message": {"content": text}}]}, sink()),
    "inline reasoning": split_reasoning,
    "memory blocks": without_memory_block,
    "arguments": called,
    "names": lambda text: check_calls([ToolCall("1", text, "{}")], [], 0.7),
    "an error body": refused,
    "an exception of a tool": lambda text: text_of_error(ValueError(text)),
    "attacks in a result": scanned,
    "marks around a result": lambda text: wrap_untrusted(text[:MAX_SCANNED], "x"),
    "secrets": mask,
    "what is summarized": lambda text: summary_prompt([Message("user", text)] * 3, window=100_000),
    "a command": asked,
    "a result of an MCP server": told_by_a_server,
    "a page of text": page("text/plain"),
    "a page with a header": page("text/plain; charset=" + "punycode"),
    "a page in a code page": page("text/plain; charset=windows-1253"),
}


def megabyte(pump: str) -> str:
    return (pump * (SIZE // len(pump) + 1))[:SIZE]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
async def test_a_megabyte_of_each_shape_does_not_hold_the_loop(door: str) -> None:
    go, late = DOORS[door], {}

    async def work(text: str) -> None:
        if asyncio.iscoroutine(made := go(text)):
            await made

    await ticking(lambda: work("warm " * 100))
    for pump in sampled(PUMPS, f"megabytes for {door}"):
        text = megabyte(pump)
        for _ in range(8):  # a busy machine may hold us up as well
            before, longest, after = slowness(), await ticking(partial(work, text)), slowness()
            if longest <= HELD * max(before, after):
                break
        else:
            late[pump] = f"{longest:.3f} s"
    assert not late


@pytest.mark.slow
def test_an_image_that_is_made_smaller_does_not_hold_the_loop() -> None:
    written = io.BytesIO()
    Image.effect_noise((8_200, 1_500), 80).save(written, "PNG")
    large = ImagePart(written.getvalue()).part()

    @tool
    async def look() -> list[Any]:
        """Look."""
        return [large]

    runner = ToolRunner([look], clock=FakeClock())
    outcomes: list[ToolOutcome] = []

    async def work() -> None:
        outcomes.append(await runner.run(RunTool("1", "look", {}, 60.0, "pure"), Interrupt()))

    for _ in range(8):  # as above
        before, longest, after = slowness(), asyncio.run(ticking(work)), slowness()
        assert kind_of(outcomes[-1].content[-1]) == "image"
        if longest <= HELD * max(before, after):
            return
    raise AssertionError(f"{longest:.3f} s")


def test_the_watchdog_sees_who_holds_the_loop() -> None:
    async def hold() -> None:
        until = time.process_time() + 2 * HELD
        while time.process_time() < until:
            pass

    assert asyncio.run(ticking(hold)) > HELD
    assert asyncio.run(ticking(lambda: asyncio.sleep(0.01))) < HELD


@pytest.mark.slow
def test_only_character_sets_of_the_web_decode_a_page() -> None:
    names = (
        "punycode", "idna", "hz", "utf-7", "bz2_codec", "zlib_codec", "rot13", "unicode_escape", "no-such",
    )  # fmt: skip
    for charset in names:
        page = Fetched("http://a/", 200, "OK", f"text/plain; charset={charset}", "grüße".encode(), False)
        assert asyncio.run(text_of_page(page, whole=False)) == "grüße", charset
