"""What was fetched, as text: by its content type, its character set, and its markup."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import sys

from fsm_agent.support.bare_environment import bare_environment
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets import page_worker
from fsm_agent.toolsets.fetch import Fetched

PARSE_SECONDS = 10.0
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(
    r"text/.*|application/(?:[\w.+-]*\+)?(?:json|xml|yaml|toml|javascript|x-javascript|x-sh|x-ndjson|sql)"
)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


async def text_of_page(fetched: Fetched, whole: bool, seconds: float = PARSE_SECONDS) -> str:
    """The text of a page, or of whatever else is text. Raises ``ToolFailure`` for what is none, and for a
    page that takes longer than ``seconds`` to be read."""
    kind = fetched.content_type.partition(";")[0].strip().lower() or _guessed(fetched.body)
    if kind in _HTML:
        return await _from_html(_decoded(fetched, markup=True), fetched.address, whole, seconds)
    if not _TEXT.fullmatch(kind):
        size = f"{len(fetched.body):,} bytes{' or more' if fetched.cut else ''}"
        raise ToolFailure(f"{fetched.address}: {kind}, {size}: not text, so it is not shown.")
    return _decoded(fetched, markup=False)


def _guessed(body: bytes) -> str:
    start = body[:1_000].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    return "application/octet-stream" if b"\0" in start else "text/plain"


def _decoded(fetched: Fetched, markup: bool) -> str:
    for mark, name in _BOMS:
        if fetched.body.startswith(mark):
            return fetched.body.decode(name, "replace")
    declared = _CHARSET.search(fetched.content_type)
    if declared is None and markup:
        declared = _CHARSET.search(fetched.body[:2_048].decode("ascii", "replace"))
    with contextlib.suppress(LookupError):
        # a name that Python does not know, or of something that is no text
        return fetched.body.decode(declared[1] if declared else "utf-8", "replace")
    return fetched.body.decode("utf-8", "replace")


async def _from_html(page: str, address: str, whole: bool, seconds: float) -> str:
    """In a process of its own, which is killed when a page keeps it busy."""
    command = (
        sys.executable,
        "-I",
        "-S",
        "-X",
        "utf8",
        page_worker.__file__,
        address,
        "whole" if whole else "main",
    )
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=bare_environment()
    )
    try:
        async with asyncio.timeout(seconds):
            text, _ = await worker.communicate(page.encode("utf-8", "replace"))
    except TimeoutError:
        raise ToolFailure(f"{address}: the page could not be read within {seconds:g} seconds.") from None
    finally:
        if worker.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
    if worker.returncode:
        raise ToolFailure(f"{address}: the page could not be read.")
    return text.decode("utf-8", "replace")
