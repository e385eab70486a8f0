"""The visible form of a text can be read back as exactly that text. Nothing in it hides or steers."""

from __future__ import annotations

import time
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fsm_agent.approvals.question import original, visible

TRICKY = st.text(
    st.sampled_from("\\xuU01b5cae{} \n\t\r\x1b\u202e↵⇥⟨⟩,times\u0301éa\u200b\ud800\U000e0041אש\u05b8٣;/"),
    max_size=40,
)
RUNS = st.lists(st.tuples(st.sampled_from(" \n\t\\\u200bé↵\u0301x⟨"), st.integers(1, 90)), max_size=6).map(
    lambda runs: "".join(char * times for char, times in runs)
)
TEXTS = st.one_of(TRICKY, RUNS, st.text(st.characters()))


@given(TEXTS, st.sampled_from(["utf-8", "ascii", "latin-1", "cp437"]), st.booleans())
@example("\\x1b", "utf-8", True)
@example("\\\x1b", "utf-8", True)
@example("\\\n", "ascii", True)
@example("\\x5cx1b", "utf-8", False)
def test_what_is_shown_decodes_back_to_what_runs(text: str, encoding: str, lines: bool) -> None:
    shown = visible(text, encoding, lines=lines)
    assert original(shown) == text
    shown.encode(encoding)


@given(TEXTS, st.booleans())
def test_nothing_unseen_is_left_in_what_is_shown(text: str, lines: bool) -> None:
    shown = visible(text, lines=lines)
    unseen = {
        char for char in shown if category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs", "Me")
    }
    assert unseen <= ({" ", "\n"} if lines else {" "})
    assert not any(line.endswith(" ") and not line.endswith("⇥   ") for line in shown.split("\n"))
    assert all(line.endswith("↵") for line in shown.split("\n")[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "rm -rf build", "grep 'a\\.b' x | sed 's/\\\\/x/'", "printf 'a\\nb'", "नमस्ते שלום é ☕ 日本", "a  b",
        "שלום, עולם! מה?", "echo 'مرحبا بالعالم'",
    ],
)  # fmt: skip
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ls -la # \x1b]0;\ntouch OWNED\n: \x07", "ls -la # \\x1b]0;↵\ntouch OWNED↵\n: \\x07"),
        ("printf '\\x1b[0m'", r"printf '\x5cx1b[0m'"), ("\\\\u202e", r"\x5c\x5cu202e"),
        ("make \\\n\tall  \n", "make \\↵\n⇥   all \\x20↵\n"), ("a↵⇥", r"a\u21b5\u21e5"),
        ("ls" + " " * 5_000 + "; rm", r"ls\x20⟨5,000 times⟩; rm"),
        ("a" + "\n" * 50 + "b", "a\\x0a⟨49 times⟩↵\nb"), ("\ud83d", r"\ud83d"),
        ("=\u0338 e\u0301", r"=\u0338 e" + "\u0301"), ("rm /א/ב", r"rm /\u05d0/\u05d1"),
        ("mv א 5", r"mv \u05d0 5"), ("echo א; echo ב", "echo א; echo ב"), ("kill ٣", r"kill \u0663"),
        ("א" * 50 + ";ב", r"\u05d0⟨50 times⟩;\u05d1"), ("ש\u05b8;ב", r"\u05e9\u05b8;\u05d1"),
        ("e" + "\u0301" * 5, "e" + "\u0301" * 3 + r"\u0301\u0301"),
    ],
)  # fmt: skip
def test_how_it_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_every_kind_of_unseen_character_is_an_escape() -> None:
    for char in list(
        "\x00\x07\x08\r\x7f\x85\x9b\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u180b\u180e\u2000\u2003\u200b\u200d\u200e\u2028"
        "\u202a\u202e\u202f\u205f\u2060\u2066\u2800\u3000\u3164\ud800\ue000\ufe0f\ufeff\uffa0\ufff9\ufffc\U0001d159\U000e0041"
        "\U000e0100\U000f0000\U0010ffff"
    ):
        shown = visible(f"a{char}b")
        assert shown.isascii(), char
        assert shown[1] == "\\", char


@pytest.mark.slow
@pytest.mark.parametrize(
    "evil",
    [
        "\\", "\\x", " \n", " " * 39 + "x", "\x1b", "\x1b\x9b", "e\u0301\u0302", "漢字", "\\x1", "⟨", "a", "א",
        "א;", "א;a", ";;;;א",
    ],
    ids=ascii,
)  # fmt: skip
def test_time_grows_no_faster_than_the_text(evil: str) -> None:
    """Four times the text takes less than twelve times as long; whatever is quadratic takes sixteen times."""

    def took(size: int) -> float:
        text, best = evil * (size // len(evil)), 9.0
        for _ in range(3):
            began = time.process_time()
            visible(text)
            best = min(best, time.process_time() - began)
        return best

    assert took(200_000) < 12 * max(took(50_000), 0.002)
