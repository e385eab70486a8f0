"""Messages with images, audio and files: what reaches the model, what is refused, and what users see."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fsm_agent import AudioPart, FilePart, ImagePart, tool
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.export import export_session
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.support.installation import install_command
from fsm_agent.testing import FakeMemory, ScriptedServer, call, status, text, tools
from tests.helpers.harness import break_off, play, table

CLAUDE, GPT, RESPONSES = "anthropic:claude-sonnet-4-5", "openai:gpt-4o", "openai-responses:gpt-4o"
BLIND = "deepseek:deepseek-chat"


def picture(width: int = 8, height: int = 8, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, form)
    return file.getvalue()


def pdf(words: str = "ten euros") -> bytes:
    """One page that says ``words``."""
    drawn = f"BT /F1 12 Tf 72 720 Td ({words}) Tj ET".encode() if words else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table_at = len(made)
    made += b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return made + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % table_at


WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "
WRONG = {
    "an image for a model without eyes": (
        BLIND, ImagePart(picture(), "a.png"), {},
        "image a.png (image/png, 77 bytes) cannot be sent: deepseek:deepseek-chat does not read images; allowed: a model that takes"
        ' it, or parts.assume=["image"] if this one does',
    ),
    "audio for Claude": (CLAUDE, AudioPart(WAV, "a.wav"), {},
        "audio a.wav (audio/wav, 16 bytes) cannot be sent: anthropic:claude-sonnet-4-5 does not read audio"),
    "audio on a wire that has none": (
        CLAUDE, AudioPart(WAV, "a.wav"), {"parts": {"assume": ["audio"]}}, "anthropic:claude-sonnet-4-5 takes no audio",
    ),
    "an upload of another vendor": (
        CLAUDE, {"type": "file", "file": {"file_id": "file-1"}}, {}, "takes no files by the id of an upload",
    ),
    "a scanned PDF for a model that reads text": (BLIND, FilePart(pdf(""), "a.pdf"), {},
        "does not read files; given: its text cannot be sent instead: it has no text, only pictures of it"),
    "a broken PDF": (BLIND, FilePart(b"%PDF-1.4 broken", "a.pdf"), {}, "its text cannot be sent instead: it is broken"),
    "a file that is too large": (
        CLAUDE, FilePart(pdf() + b" " * 2_000, "a.pdf"), {"parts": {"max_bytes": 1_000}}, "is too large; given: 2,",
    ),
    "an image that cannot be read": (CLAUDE, ImagePart(b"\x00" * 40, "a.tiff"), {}, "image a.tiff (image/tiff, 40 bytes) cannot be made to fit"),
    "a program": (CLAUDE, FilePart(b"\x7fELF\x00", "a.bin"), {}, "the file a.bin is of a type that is not read"),
}  # fmt: skip


@pytest.mark.parametrize(("model", "part", "settings", "line"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_sent_is_refused_before_the_turn(
    model: str, part: Any, settings: Any, line: str
) -> None:
    with table([text("never")], model=model, settings=settings) as (agent, server, _, _):
        with pytest.raises(ConfigError) as caught:
            agent.run_conversation(["look", part])
        assert line in str(caught.value)
        assert "\n" not in str(caught.value)
        assert server.completions == 0
        assert agent.run_conversation("continue without").completed


@pytest.mark.parametrize(("missing", "extra", "part"), [
    ("PIL", "images", ImagePart(picture(form="BMP"), "a.bmp")),
    ("pypdf", "pdf", FilePart(pdf(), "a.pdf")),
])  # fmt: skip
def test_a_missing_library_is_named(
    missing: str, extra: str, part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # as where it is not installed
    model = GPT if extra == "images" else BLIND
    line = re.escape(f"{install_command(extra)}, or ")
    with table([text("never")], model=model) as (agent, _, _, _), pytest.raises(ConfigError, match=line):
        agent.chat(["look", part])


@pytest.mark.parametrize("model", [CLAUDE, GPT, RESPONSES])
def test_a_message_with_only_a_pdf_arrives(model: str) -> None:
    played = play([text("it costs ten euros")], [FilePart(pdf(), "bill.pdf")], model=model)
    (body,) = played.server.bodies
    assert base64.b64encode(pdf()).decode() in json.dumps(body)
    assert "bill.pdf" in json.dumps(body)
    assert "no text" not in json.dumps(body)


def test_a_pdf_goes_as_its_text_where_no_files_are_taken() -> None:
    message = ["what does it cost?", FilePart(pdf(), "bill.pdf")]
    with table([text("ten euros")], model=BLIND) as (agent, server, _, heard):
        assert asyncio.run(agent.arun(message)).completed
    sent = json.dumps(server.bodies[0])
    assert "its text:]\\n[page 1]\\nten euros" in sent
    assert "JVBERi" not in sent
    assert [line for line in heard.of("status") if "bill.pdf" in line] == [
        f"deepseek:deepseek-chat does not take file bill.pdf (application/pdf, {len(pdf())} bytes): it gets the text"
    ]


@pytest.mark.parametrize(("model", "form"), [(CLAUDE, "BMP"), (GPT, "PNG"), (RESPONSES, "BMP")])
def test_a_large_image_and_one_of_another_type_are_made_to_fit(model: str, form: str) -> None:
    large = ImagePart(picture(2_400, 600, form), f"a.{form.lower()}")
    played = play([text("teal")], [large], model=model, settings={"parts": {"image_side": 1_200}})
    sent = json.dumps(played.server.bodies[0])
    assert "image/jpeg" in sent
    encoded = next(word for word in sent.replace(",", '"').split('"') if word.startswith("/9j/"))
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        assert image.size == (1_200, 300)
    assert played.result.messages[0]["content"][0]["name"] == f"a.{form.lower()}"


def test_what_is_assumed_to_be_read_is_sent() -> None:
    settings = {"parts": {"assume": ["image"]}}
    played = play([text("teal")], [ImagePart(picture())], model=BLIND, settings=settings)
    assert "image_url" in json.dumps(played.server.bodies[0])


def refused_with(message: str) -> Any:
    return status(400, {"error": {"message": message}})


def test_a_provider_that_finds_an_image_too_large_gets_a_smaller_one() -> None:
    refused = refused_with("image dimensions exceed max allowed size for many-image requests: 2000 pixels")
    played = play([refused, text("teal")], [ImagePart(picture(2_600, 20))], model=CLAUDE)
    first, second = (json.dumps(body) for body in played.server.bodies)
    assert played.outcome == "completed"
    assert first != second
    assert '"type": "image"' in second
    told = [line for line in played.heard.of("status") if line.startswith("sent again")]
    assert told == ["sent again with smaller images"]


def test_an_image_that_is_refused_again_is_named() -> None:
    refused = refused_with("image exceeds 5 MB maximum")
    played = play([refused, refused, text("ok")], [ImagePart(picture(2_600, 20), "a.png")], model=CLAUDE)
    assert "[image a.png (image/png, " in json.dumps(played.server.bodies[2])
    told = [line for line in played.heard.of("status") if "a.png" in line]
    assert len(told) == 1
    assert told[0].endswith("it reads only that the message had such a part")


@pytest.mark.parametrize(("part", "message", "name"), [
    (FilePart(pdf(), "a.pdf"), "This model does not support PDF input.", "file a.pdf"),
    (AudioPart(WAV, "a.wav"), "unknown variant `input_audio`, expected `text`", "audio a.wav"),
])  # fmt: skip
def test_a_part_that_a_provider_refuses_is_named(part: Any, message: str, name: str) -> None:
    settings = {"parts": {"assume": ["audio", "file"]}}
    played = play([refused_with(message), text("ok")], ["hear", part], settings=settings)
    assert played.outcome == "completed"
    assert f"[{name} (" in json.dumps(played.server.bodies[1])
    assert len([line for line in played.heard.of("status") if name in line]) == 1


def test_a_fallback_that_takes_less_gets_lines_and_the_person_is_told_once() -> None:
    with ScriptedServer([tools(call("echo", {})), text("one"), text("two")]) as other:
        options = {"model": GPT, "fallbacks": [{"model": BLIND, "base_url": other.url, "api_key": "k"}]}
        with table([status(401)], **options) as (agent, primary, _, heard):
            message = ["what?", ImagePart(picture(), "a.png"), FilePart(pdf(), "bill.pdf")]
            result = agent.run_conversation(message)
    sent = json.dumps(other.bodies[0])
    assert result.completed
    assert "image_url" in json.dumps(primary.bodies[0])
    assert "[image a.png (image/png, 77 bytes): not sent, this model does not read images]" in sent
    assert "ten euros" in sent
    assert [line for line in heard.of("status") if "a.png" in line] == [
        "deepseek:deepseek-chat does not take image a.png (image/png, 77 bytes): it reads only that the message had such a part"
    ]
    assert result.messages[0]["content"][1]["type"] == "image_url", "what is stored stays"


def test_a_supplied_history_may_have_parts_of_any_wire_and_never_ends_the_conversation() -> None:
    encoded = base64.b64encode(picture()).decode()
    history = [
        {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{encoded}"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "teal"}]},
        {"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(pdf()).decode()}}]},
        {"role": "assistant", "content": "ten euros"},
    ]  # fmt: skip
    seen = play([text("ok")], "and?", history=history, model=CLAUDE)
    sent_types = [row["content"][0]["type"] for row in seen.server.bodies[0]["messages"][::2]]
    assert sent_types == ["image", "document", "text"]
    blind = play([text("ok")], "and?", history=history, model=BLIND)
    sent = json.dumps(blind.server.bodies[0])
    assert "[image (image/png, 77 bytes): not sent" in sent
    assert "ten euros" in sent
    assert len([line for line in blind.heard.of("status") if "does not take" in line]) == 2


def test_parts_that_a_session_cannot_show_are_reported_once(tmp_path: Path) -> None:
    """The same session continues with another model."""
    with table([text("teal")], model=GPT, home=tmp_path) as (agent, _, _, _):
        agent.chat([ImagePart(picture(), "a.png")])
        session = agent.session_id
    again = {"model": BLIND, "home": tmp_path, "session_id": session}
    with table([text("one"), text("two")], **again) as (agent, server, _, heard):
        assert (agent.chat("and?"), agent.chat("and now?")) == ("one", "two")
    assert len([line for line in heard.of("status") if "a.png" in line]) == 1
    assert all("image a.png" in json.dumps(body) for body in server.bodies)


def test_parts_are_stored_and_go_out_again_in_the_same_bytes(tmp_path: Path) -> None:
    message = ["what?", ImagePart(picture(), "a.png"), FilePart(pdf(), "bill.pdf")]
    with table([text("one")], model=CLAUDE, home=tmp_path / "a") as (agent, first, _, _):
        agent.chat(message)
        session = agent.session_id
        lines = list(export_session(store_for(str(agent.home)).database, session, raw=True))
    with table([text("two")], model=CLAUDE, home=tmp_path / "a", session_id=session) as (agent, second, _, _):
        agent.chat("again")
    parts = [block for block in first.bodies[0]["messages"][0]["content"] if block["type"] != "text"]
    assert [block["type"] for block in parts] == ["image", "document"]
    assert [block for block in second.bodies[0]["messages"][0]["content"] if block["type"] != "text"] == parts
    other = Store(tmp_path / "b")
    done = import_lines(other, lines)
    content = other.session(done.id).rows[0].content
    assert isinstance(content, list)
    assert [part["type"] for part in content] == ["text", "image_url", "file"]


@pytest.mark.parametrize(
    "requests", [1, 4, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 3, 5, 6))]
)
def test_a_turn_that_is_resumed_has_its_parts(tmp_path: Path, requests: int) -> None:
    """Even if it ended while it notified the user."""
    with table([text("never")], model=BLIND, home=tmp_path) as (agent, server, _, _):
        turn = agent.start(["cost?", FilePart(pdf(), "bill.pdf")])
        asyncio.run(break_off(agent, turn, requests))
        assert server.completions == 0
    with table([text("ten")], model=BLIND, home=tmp_path) as (agent, server, _, _):
        assert agent.resume(turn.id).run().final_response == "ten"
        assert "ten euros" in json.dumps(server.bodies[0])


@pytest.mark.parametrize("model", [CLAUDE, GPT, RESPONSES])
def test_a_tool_may_give_parts(model: str) -> None:
    @tool
    def look() -> list[Any]:
        return [{"type": "text", "text": "seen"}, ImagePart(picture(), "a.png"), FilePart(pdf(), "bill.pdf")]

    @tool
    def files() -> list[dict[str, str]]:
        return [{"type": "file", "name": "a"}]

    script = [tools(call("look", {}), call("files", {})), text("done")]
    played = play(script, tools=[look, files], model=model)
    sent = json.dumps(played.server.bodies[1])
    assert base64.b64encode(picture()).decode() in sent
    assert "bill.pdf" in sent
    assert '[{\\"type\\": \\"file\\", \\"name\\": \\"a\\"}]' in sent, "a table is not a list of parts"


def test_of_a_tools_part_that_the_model_cannot_see_or_that_cannot_be_sent_there_is_a_line() -> None:
    for image, model, line in (
        (ImagePart(picture(), "a.png"), BLIND, "[image a.png (image/png, 77 bytes): not sent"),
        (ImagePart(b"\x00" * 50, "a.tiff"), CLAUDE, "[image a.tiff (image/tiff, 50 bytes): left out"),
    ):
        look = tool(name="look")(lambda shown=image: shown)
        played = play([tools(call("look", {})), text("done")], tools=[look], model=model)
        assert line in json.dumps(played.server.bodies[1])
        if model == BLIND:
            assert len([line for line in played.heard.of("status") if "a.png" in line]) == 1


def test_a_message_with_parts_is_recalled_for_like_any_other() -> None:
    memory = FakeMemory({"who is it?": "Ada has red hair"})
    played = play([text("Ada")], ["who is it?", ImagePart(picture(), "a.png")], model=CLAUDE, memory=memory)
    words, image = played.server.bodies[0]["messages"][0]["content"]
    assert "Ada has red hair" in words["text"]
    assert image["type"] == "image"
    assert ("sync", "who is it?\n[image a.png (image/png, 77 bytes)]", "Ada") in memory.calls


def test_the_title_and_the_search_know_of_parts(tmp_path: Path) -> None:
    with table([text("teal")], model=GPT, home=tmp_path) as (agent, _, _, _):
        agent.chat(ImagePart(picture(), "sunset.png"))
        assert "sunset.png" in agent.title
