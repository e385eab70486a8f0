"""From what a server answers to what a model gets, block by block."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from mcp_types import CallToolResult

from fsm_agent.conversation.parts import name_part
from fsm_agent.toolsets.mcp.results import MOST_PARTS, result_of

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(kind: str = "image/png", data: str = PIXEL) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": kind}


def answer(*content: dict[str, Any], structured: Any = None, failed: bool = False) -> CallToolResult:
    raw = {"content": list(content), "isError": failed, "structuredContent": structured}
    return CallToolResult.model_validate({name: value for name, value in raw.items() if value is not None})


PASSED_ON = [
    # what is said twice is passed on once
    (['{"a": 1, "b": [2]}'], {"b": [2], "a": 1}, '{"a": 1, "b": [2]}'),
    (["42"], {"result": 42}, "42"),
    (["plain words"], {"result": "plain words"}, "plain words"),
    (["file content"], {"content": "file content"}, "file content"),
    (['{"a": 1}'], {"result": {"a": 1}}, '{"a": 1}'),
    (["1", "two"], {"result": [1, "two"]}, "1\ntwo"),
    # what only the structure says is added
    ([], {"a": 1}, '{"a": 1}'),
    (["a summary"], {"a": 1, "b": 2}, 'a summary\n{"a": 1, "b": 2}'),
    (["a summary"], {"a": 1}, 'a summary\n{"a": 1}'),
    ([], {}, "{}"),
    (["ä\x00\ud800"], None, "ä\ufffd"),
    ([], None, ""),
]


def test_text_and_structure_are_passed_on_once() -> None:
    for content, structured, expected in PASSED_ON:
        told = result_of(answer(*map(text, content), structured=structured)).text
        assert told == expected, (content, structured)


def test_a_failure_is_one_by_the_servers_word_alone() -> None:
    assert result_of(answer(text("no disk"), failed=True)).failed
    assert not result_of(answer(text("error: 0 failed"))).failed


def resource(uri: str, blob: str, kind: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "blob": blob, "mimeType": kind}}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (image("image/svg+xml"), "[content left out: image/svg+xml, 12 bytes]"),
        (image(data="not base64!"), "[image left out: its data is broken]"),
        ({"type": "audio", "data": "T2dnUw==", "mimeType": "audio/ogg"},
         "[content left out: audio/ogg, 6 bytes]"),
        ({"type": "resource", "resource": {"uri": "a://b", "text": "inside"}}, "[resource a://b]\ninside"),
        (resource("a://b", PIXEL, "application/zip"),
         "[resource a://b]\n[content left out: application/zip, 12 bytes]"),
        ({"type": "resource_link", "uri": "a://b", "name": "b"}, "[resource b: a://b]"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_be_given_is_named(block: dict[str, Any], expected: str) -> None:
    made = result_of(answer(block))
    assert (made.text, made.parts) == (expected, ())


def test_images_audio_and_pdfs_are_parts() -> None:
    within = resource("a://b.png", PIXEL, "image/png")
    made = result_of(answer(text("before"), image(), within, *[image()] * MOST_PARTS))
    assert len(made.parts) == MOST_PARTS
    assert made.parts[0] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    assert made.text.startswith("before\n[resource a://b.png]\n[image left out: only 8")
    assert made.text.count("image left out") == 2
    # audio and pdfs are parts
    pdf = resource("a://b/c.pdf", "JVBERi0xLjQ=", "application/pdf")
    sound = {"type": "audio", "data": "UklGRgAAAABXQVZF", "mimeType": "audio/wav"}
    expected = ["file c.pdf (application/pdf, 8 bytes)", "audio (audio/wav, 12 bytes)"]
    assert [name_part(part) for part in result_of(answer(pdf, sound)).parts] == expected
