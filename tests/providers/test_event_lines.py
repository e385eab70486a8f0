"""A stream of events means the same however it is cut into pieces."""

from __future__ import annotations

import pytest

from fsm_agent.providers.sdk_port import EventLines
from fsm_agent.providers.transport import BadBody

STREAM = (
    ': a comment\n\nevent: message\ndata: {"a": 1}\nid: 7\n\ndata:Grüße 🙂\n\n'
    "event: ping\n\ndata:\n\ndata: two\ndata:  lines\nretry: 5\n\n\ndata: [DONE]\n\ndata: cut"
)
EVENTS = ['{"a": 1}', "Grüße 🙂", "two\n lines", "[DONE]"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
def test_pieces_of_any_size_and_lines_of_any_end(end: str, size: int) -> None:
    whole = STREAM.replace("\n", end).encode()
    lines = EventLines(1_000)
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert [data for piece in pieces for data in (*lines.feed(piece), *lines.feed(b""))] == EVENTS


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_cut_at_any_place(end: str) -> None:
    whole = STREAM.replace("\n", end).encode()
    for at in range(len(whole)):
        lines = EventLines(1_000)
        assert [*lines.feed(whole[:at]), *lines.feed(whole[at:])] == EVENTS


@pytest.mark.parametrize("size", [1, 10, 1_000])
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("data: " + "x" * 94 + "\n\n", True), ("data: " + "x" * 95 + "\n\n", False),
        ("data: 45678\n" * 9 + "\n", True), ("data: 45678\n" * 10 + "\n", False), ("x" * 101, False),
        ("data: 45678\n\n" * 100, True),
    ],
)  # fmt: skip
def test_an_event_of_more_than_it_may_be_is_not_read_on(text: str, fits: bool, size: int) -> None:
    lines = EventLines(100)
    pieces = [text[at : at + size].encode() for at in range(0, len(text), size)]
    if fits:
        assert [data for piece in pieces for data in lines.feed(piece)]
        return
    with pytest.raises(BadBody, match="an event of more than 100 bytes"):
        [lines.feed(piece) for piece in pieces]


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        EventLines(100).feed(b"data: \xff\n\n")
