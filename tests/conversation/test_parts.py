"""Content parts: every documented form of them is read as one, and each wire gets its own."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from fsm_agent import AudioPart, FilePart, ImagePart
from fsm_agent.conversation.compaction import prune, summary_prompt, summary_without_model
from fsm_agent.conversation.compaction.plan import cut_row, partless
from fsm_agent.conversation.effects import ApiMode
from fsm_agent.conversation.messages import Message, ToolCall
from fsm_agent.conversation.parts import kind_of, name_part, part_of, parts_of, weight
from fsm_agent.conversation.wire import WireCopy
from fsm_agent.conversation.wire.form import REPAIRED, TAKEN, View, reduced_parts
from fsm_agent.errors import ConfigError

MODES: tuple[ApiMode, ...] = ("chat_completions", "codex_responses", "anthropic_messages")


def png(width: int = 2, height: int = 2, *, noise: bool = False) -> bytes:
    image = Image.effect_noise((width, height), 90) if noise else Image.new("RGB", (width, height), "red")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


PNG = base64.b64encode(png()).decode()
PDF = base64.b64encode(b"%PDF-1.4 nothing").decode()
WAV = base64.b64encode(b"RIFF\x00\x00\x00\x00WAVEfmt ").decode()
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
ADDRESS = "https://x.example/a.png"
FORMS: dict[str, tuple[Any, Any]] = {
    "a string": ("hi", {"type": "text", "text": "hi"}),
    "chat: text": ({"type": "text", "text": "hi"}, {"type": "text", "text": "hi"}),
    "chat: image": (IMAGE, IMAGE),
    "chat: image as a string": ({"type": "image_url", "image_url": ADDRESS}, {"type": "image_url", "image_url": {"url": ADDRESS}}),
    "chat: audio": (AUDIO, AUDIO),
    "chat: file": (FILE, FILE),
    "chat: file without a type": ({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}, FILE),
    "chat: file by id": ({"type": "file", "file": {"file_id": "f-1"}}, {"type": "file", "file": {"file_id": "f-1"}}),
    "responses: text": ({"type": "input_text", "text": "hi"}, {"type": "text", "text": "hi"}),
    "responses: said": ({"type": "output_text", "text": "hi", "annotations": []}, {"type": "text", "text": "hi"}),
    "responses: image": (
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "low"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
    ),
    "responses: image by id": ({"type": "input_image", "file_id": "f-1"}, {"type": "image_url", "image_url": {"file_id": "f-1"}}),
    "responses: file": ({"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}, FILE),
    "responses: file by address": (
        {"type": "input_file", "file_url": "https://x.example/a.pdf"},
        {"type": "file", "file": {"file_url": "https://x.example/a.pdf"}},
    ),
    "messages: image": ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}, IMAGE),
    "messages: image by address": (
        {"type": "image", "source": {"type": "url", "url": ADDRESS}},
        {"type": "image_url", "image_url": {"url": ADDRESS}},
    ),
    "messages: document": (
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "a.pdf"},
        FILE,
    ),
    "messages: text document": (
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "inside"}, "title": "a.txt"},
        {"type": "text", "text": "[file a.txt]\ninside"},
    ),
    "messages: blocks of a document": (
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "inside"}]}},
        {"type": "text", "text": "inside"},
    ),
    "an image that says it is another": (
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PNG}"}},
        IMAGE,
    ),
    "an image as a file": ({"type": "input_file", "file_data": PNG, "filename": "a.png"}, {**IMAGE, "name": "a.png"}),
    "a text as a file": (
        {"type": "input_file", "filename": "a.csv", "file_data": base64.b64encode(b"a;b").decode()},
        {"type": "text", "text": "[file a.csv]\na;b"},
    ),
    "ours: an image": (ImagePart(png(), "a.png"), {**IMAGE, "name": "a.png"}),
    "ours: an address": (ImagePart(ADDRESS, detail="high"), {"type": "image_url", "image_url": {"url": ADDRESS, "detail": "high"}}),
    "ours: audio": (AudioPart(base64.b64decode(WAV)), AUDIO),
    "ours: a file": (FilePart(base64.b64decode(PDF), "a.pdf"), FILE),
}  # fmt: skip
DICTS = [(form, stored) for form, stored in FORMS.values() if isinstance(form, dict)]
NO_PARTS: dict[str, Any] = {
    "a number": 3,
    "no type": {"text": "x"},
    "an unknown type": {"type": "video_url", "video_url": "x"},
    "a call": {"type": "tool_use", "id": "1", "name": "x", "input": {}},
    "a text that is a number": {"type": "text", "text": 3},
    "an image without an address": {"type": "image_url", "image_url": {}},
    "a file of this machine": {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
    "broken data": {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}},
    "empty data": {"type": "image_url", "image_url": {"url": "data:,"}},
    "text as an image": {"type": "image_url", "image_url": {"url": "data:text/plain,hello"}},
    "audio by address": {"type": "input_audio", "input_audio": {"data": "data:audio/ogg;base64,T2dnUw=="}},
    "audio without data": {"type": "input_audio"},
    "a source of another kind": {"type": "image", "source": {"type": "bedrock"}},
    "a document without a source": {"type": "document"},
    "a file with nothing": {"type": "file", "file": {}},
    "an archive": FilePart(b"PK\x03\x04\x00", "a.zip"),
    "a file that is not there": FilePart("/nowhere/a.pdf"),
    "an address without a host": {"type": "image_url", "image_url": {"url": "https://"}},
}  # fmt: skip


@pytest.mark.parametrize(("form", "stored"), FORMS.values(), ids=FORMS)
def test_every_documented_form_is_stored_in_one(form: Any, stored: Any) -> None:
    assert part_of(form) == stored
    assert part_of(stored) == stored, "what is stored is read as what it is"


@pytest.mark.parametrize("given", NO_PARTS.values(), ids=NO_PARTS)
def test_an_invalid_part_fails_with_one_clear_line(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parts_of(["words", given])
    assert "\n" not in str(caught.value)
    assert "allowed:" in str(caught.value)


def test_parts_are_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.md").write_text("# Ä")
    assert part_of(ImagePart(tmp_path / "a.png")) == {**IMAGE, "name": "a.png"}
    assert part_of(FilePart(str(tmp_path / "b.md"))) == {"type": "text", "text": "[file b.md]\n# Ä"}


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=9)
LEAVES = SCALARS | st.sampled_from(["data:image/png;base64,AA==", ADDRESS, PNG])
KEYS = st.sampled_from(
    ["type", "text", "image_url", "url", "source", "data", "media_type", "file", "file_data", "file_id", "file_url", "filename",
     "title", "detail", "name", "input_audio", "format", "content"]
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=6
)
TYPES = st.sampled_from([form["type"] for form, _ in DICTS] + ["thinking", "other"])


@given(
    st.builds(lambda kind, rest: {**rest, "type": kind}, TYPES, st.dictionaries(KEYS, VALUES, max_size=5)),
    st.sampled_from(MODES),
)
@example({"type": "input_audio", "input_audio": {"format": "\x00\n", "data": "AA=="}}, "anthropic_messages")
@example({"type": "image_url", "name": "\ud7fc"}, "chat_completions")
@example({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0="}}, "chat_completions")
def test_whatever_is_in_a_part_it_goes_out_or_is_refused(part: dict[str, Any], mode: ApiMode) -> None:
    """Also a part that was stored by who knows whom is written on every wire, and never disappears."""
    rows = [Message("user", [part]), Message("assistant", "I see"), Message("user", [part])]
    view = View(mode, audio=True, files=True)
    first, *_ = json.loads(sent_as(rows, view))
    if kind_of(part):
        (block,) = first["content"]
        assert "text" not in block or block["text"].startswith(f"[{name_part(part)}")
    try:
        made = part_of(part)
    except ConfigError:
        return
    assert part_of(made) == made
    assert weight(made) >= 0
    assert name_part(made)


def sent_as(rows: list[Message], view: View) -> bytes:
    return b"".join(WireCopy().messages("", rows, (), view))


NATIVE = {
    "chat_completions": [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
    ],
    "codex_responses": [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        {"type": "input_text", "text": "[audio s.wav (audio/wav, 16 bytes): not sent, this model takes no audio]"},
    ],
    "anthropic_messages": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "a.pdf"},
        {"type": "text", "text": "[audio s.wav (audio/wav, 16 bytes): not sent, this model takes no audio]"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_each_wire_gets_its_own_form(mode: ApiMode) -> None:
    rows = [Message("user", [{**IMAGE, "name": "i.png"}, FILE, {**AUDIO, "name": "s.wav"}])]
    (row,) = json.loads(sent_as(rows, View(mode, audio=True, files=True)))
    assert row["content"] == NATIVE[mode]


@pytest.mark.behaviour("BUILD-18")
@pytest.mark.parametrize("mode", MODES)
def test_what_a_model_does_not_read_is_named(mode: ApiMode) -> None:
    """A message with only a PDF went out as "(no text)"."""
    rows = [
        Message("user", [{**IMAGE, "name": "i.png"}]),
        Message("assistant", "?"),
        Message("user", [FILE, AUDIO]),
    ]
    view = View(mode, vision=False)
    sent = sent_as(rows, view).decode()
    for words in (
        "[image i.png (image/png, ",
        "[file a.pdf (application/pdf, 16 bytes): not sent, this model does not read files]",
        "[audio (audio/wav, 16 bytes): not sent, this model does not read audio]",
    ):
        assert words in sent
    assert not any(words in sent for words in ("no text", PNG, PDF))
    assert reduced_parts(rows, view)[1] == []
    assert len(reduced_parts(rows, view)[0]) == 3


@pytest.mark.parametrize("mode", MODES)
def test_the_text_of_a_pdf_replaces_it(mode: ApiMode) -> None:
    rows = [Message("user", [{**FILE, "text": "[page 1]\nten euros"}])]
    sent = sent_as(rows, View(mode)).decode()
    assert "[file a.pdf (application/pdf, 16 bytes), its text:]\\n[page 1]\\nten euros" in sent
    assert reduced_parts(rows, View(mode)) == ([], ["file a.pdf (application/pdf, 16 bytes)"])
    whole = sent_as(rows, View(mode, files=True)).decode()
    assert PDF in whole
    assert "ten euros" not in whole


@pytest.mark.parametrize("mode", MODES)
def test_an_image_stays_beside_the_preview_of_a_long_result(mode: ApiMode) -> None:
    result = [{"type": "text", "text": "long " * 99}, IMAGE]
    rows = [
        Message("user", "look"),
        Message("assistant", None, tool_calls=(ToolCall("c1", "look", "{}"),)),
        Message("tool", result, tool_call_id="c1", sent="long … the rest is in a file"),
    ]
    sent = sent_as(rows, View(mode)).decode()
    assert PNG in sent
    assert "the rest is in a file" in sent
    flat = sent_as(rows, View(mode, repairs=frozenset({"flat_tool_content"}))).decode()
    assert PNG not in flat
    assert "[image (image/png, " in flat


@pytest.mark.parametrize("mode", MODES)
def test_an_image_that_a_provider_found_too_large_is_made_smaller(mode: ApiMode) -> None:
    large = part_of(ImagePart(png(3_000, 100)))
    sent = sent_as([Message("user", [large])], View(mode, repairs=frozenset({"smaller_images"}))).decode()
    (encoded,) = [word for word in sent.replace(",", '"').split('"') if len(word) > 200]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        assert image.size == (REPAIRED.side, 52)
    assert sent != sent_as([Message("user", [large])], View(mode)).decode()


def test_the_guide_says_what_each_wire_takes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text(encoding="utf-8")
    words = {"data": "data", "url": "address", "id": "upload id"}
    for name, kind in (("image", "image"), ("audio", "audio"), ("PDF", "file")):
        cells = [", ".join(words[one] for one in TAKEN[mode].get(kind, ())) or "–" for mode in MODES]
        assert f"| {name} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize("mode", MODES)
def test_what_an_older_version_stored_in_another_form_is_sent(mode: ApiMode) -> None:
    stored = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    now = [Message("user", [part_of(stored)])]
    assert sent_as([Message("user", [stored])], View(mode)) == sent_as(now, View(mode))


def test_an_older_image_of_a_tool_is_named_beside_a_preview_too() -> None:
    rows = [Message("user", "look")]
    for number in range(4):
        image = {**IMAGE, "name": f"{number}.png"}
        rows += [
            Message("assistant", None, tool_calls=(ToolCall(f"c{number}", "look", "{}"),)),
            Message("tool", [image], tool_call_id=f"c{number}", sent="a preview"),
        ]
    sent = sent_as(rows, View("anthropic_messages")).decode()
    assert sent.count(PNG) == 3
    assert "[image 0.png (image/png, " in sent
    assert (sent.count("not sent again, newer ones are]"), sent.count("a preview")) == (1, 4)


# Compaction


def test_a_summary_knows_of_the_parts_that_it_replaces() -> None:
    rows = [Message("user", ["what?", {**IMAGE, "name": "i.png"}, FILE]), Message("user", [AUDIO])]
    rows = [Message(row.role, parts_of(row.content)) for row in rows]
    for said in (summary_prompt(rows, window=100_000), summary_without_model(rows)):
        assert "image i.png" in said
        assert "file a.pdf" in said
        assert "audio" in said
        assert PNG not in said


def test_parts_before_the_newest_become_lines_that_name_them() -> None:
    history = [
        Message("user", [{**IMAGE, "name": "i.png"}, FILE]),
        *(Message("assistant", "ok") if number % 2 else Message("user", "continue") for number in range(9)),
        Message("user", [AUDIO]),
    ]
    first = prune(history, 3)[0]
    assert "i.png" in first.text
    assert "a.pdf" in first.text
    assert prune(history, 3)[-1].content == [AUDIO]
    result = Message("tool", [{"type": "text", "text": "seen"}, IMAGE], sent="a preview")
    assert "image (image/png" in partless(result).said


def test_the_text_of_a_file_is_cut_and_not_lost() -> None:
    row = cut_row(Message("user", [{**FILE, "text": "word " * 4_000}]), 1_000, "the rest was cut")
    assert row.sent is not None
    assert "word word" in row.sent
    assert "a.pdf" in row.sent
    assert len(row.sent) < 1_200
