"""A file that a disk, a power failure or a copy has damaged is one line, and is not written to."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.errors import StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.rows import json_with_checksum, loads
from fsm_agent.sessions.store.schema import VERSIONS, health, look_through
from fsm_agent.sessions.store.search import search
from fsm_agent.sessions.store.sqlite import SqliteDatabase
from fsm_agent.testing import call, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.store_homes import agent
from tests.helpers.waiting import PATIENCE, until

PAGE, ROOT = 4096, Path(__file__).parents[2]
NEEDLE = "the okapi of the third page"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a conversation of some pages, all of it in the file itself."""
    home = tmp_path_factory.mktemp("made")
    store = Store(home)
    script: list[Any] = [tools(call("lookup", {"city": "Bern"})), text("sunny " * 900)]
    for number in range(6):
        agent([*script], home, store=store, session_id="s-1").chat(f"question {number}: {NEEDLE}")
    search(store.database, "okapi")
    store.close()
    moved_in(home / "sessions.db")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home", ignore=shutil.ignore_patterns("owners", "*-wal", "*-shm"))
    return tmp_path / "home"


def flip(path: Path, byte: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def kept(home: Path) -> dict[str, bytes]:
    """What must stay as it is. A reader recreates the shared memory beside the log, and an empty
    log."""
    files = [file for file in home.glob("sessions.db*") if not file.name.endswith("-shm")]
    return {file.name: content for file in files if (content := file.read_bytes())}


def moved_in(path: Path) -> None:
    """Nothing is left in the log."""
    with contextlib.closing(sqlite3.connect(path)) as c:
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def page_of(path: Path, table: str, kind: int) -> int:
    """Where the first page of a table of this kind begins: 5 is an interior page, 13 a leaf."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as c:
        root = c.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0]
    content, places = path.read_bytes(), [(root - 1) * PAGE]
    while content[places[0]] != kind:
        first = places[0] + int.from_bytes(content[places[0] + 12 : places[0] + 14])
        places = [(int.from_bytes(content[first : first + 4]) - 1) * PAGE]
    return places[0]


def zero(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + PAGE] = bytes(PAGE)
    path.write_bytes(content)


def cut(path: Path, pages: int) -> None:
    path.write_bytes(path.read_bytes()[: -pages * PAGE])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "no database at all": lambda path: path.write_bytes(b"no database" * 9000) and None,
    "a page of garbage": lambda path: path.write_bytes(path.read_bytes()[:PAGE] + b"\xff" * 60_000) and None,
    "the size in the header": lambda path: flip(path, 31),
    "the encoding in the header": lambda path: flip(path, 20, 3),
    "an interior page": lambda path: flip(path, page_of(path, "messages", 5) + 3, 6),
    "a cell of an interior page": lambda path: flip(path, page_of(path, "messages", 5) + 12, 7),
    "a cell of a leaf": lambda path: flip(path, page_of(path, "messages", 13) + 8, 7),
    "a letter that an index has otherwise": lambda path: flip(
        path, path.read_bytes().index(b"s-1", page_of(path, "messages", 13)), 1
    ),
    "a page of zeros": lambda path: zero(path, page_of(path, "messages", 13)),
    "a page of zeros in an index": lambda path: zero(path, page_of(path, "message_index_data", 13)),
    "cut off": lambda path: cut(path, 3),
    "cut off in the middle of a page": lambda path: path.write_bytes(path.read_bytes()[: -2 * PAGE - 1000]),
    "the format in the header": lambda path: flip(path, 63),
    "a high bit of the format": lambda path: flip(path, 61, 4),
    "a bit that makes the format 0": lambda path: flip(path, 63, 1),
    "the mark in the header": lambda path: flip(path, 71, 3),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line_and_not_written_to(home: Path, cli: Cli, damage: str) -> None:
    DAMAGES[damage](home / "sessions.db")
    before = kept(home)
    for _ in range(2):
        err = cli.refused("run", "-q", "hello", "--model", "offline:demo", "--home", str(home))
        [line] = err.splitlines()
        assert line.startswith(
            f"fsm-agent: the session store {home / 'sessions.db'} cannot be used: it is damaged; restore a"
        )
        assert "newer version" not in line
        assert kept(home) == before
    with pytest.raises(StoreError, match="it is damaged"):
        health(home)
    code, out, _ = cli("doctor", "--home", str(home))
    assert code == 1
    assert "problem  sessions " in out


@pytest.mark.slow
def test_a_flip_anywhere_in_the_header_is_refused_or_harmless(home: Path) -> None:
    """All eight hundred of them were tried; these are one in eleven."""
    for bit in range(0, 800, 11):
        copy = shutil.copytree(home, home.parent / str(bit))
        flip(copy / "sessions.db", bit // 8, bit % 8)
        before = kept(copy)
        store = Store(copy)
        problem = ""
        try:
            one = agent([text("more")], copy, store=store, session_id="s-1")
            result = one.run_conversation("and now?")
        except StoreError as error:
            problem = str(error)
        store.close()
        assert "newer version" not in problem, f"bit {bit}"
        if problem:
            assert kept(copy) == before, f"bit {bit}"
        else:
            assert (len(result.messages), result.cleanup_errors) == (26, []), f"bit {bit}"


def test_what_can_still_be_read_of_a_damaged_file_can_be_read(home: Path, cli: Cli) -> None:
    zero(home / "sessions.db", page_of(home / "sessions.db", "usage_by_at", 10))
    before = kept(home)
    assert cli("run", "hello", "--model", "offline:demo", "--home", str(home))[0] == 2
    assert NEEDLE in cli("sessions", "show", "s-1", "--home", str(home))[1]
    assert NEEDLE in cli("sessions", "export", "s-1", "--home", str(home))[1]
    assert kept(home) == before


def test_damage_found_late_keeps_reading_and_writes_nothing_at_close(home: Path) -> None:
    """Some rows are still in the log; the last process to close the file moves them into it."""
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as other:
        other.execute("INSERT INTO marks VALUES ('in the log', 1)")
        other.commit()
        zero(home / "sessions.db", page_of(home / "sessions.db", "usage_by_at", 10))
        copy = home.parent / "copy"
        shutil.copytree(home, copy)
    before = kept(copy)
    assert set(before) == {"sessions.db", "sessions.db-wal"}
    assert before["sessions.db-wal"]
    database = SqliteDatabase(copy / "sessions.db")
    for _ in range(2):
        with pytest.raises(StoreError, match="it is damaged"):
            database.write(lambda c: c.execute("INSERT INTO marks VALUES ('new', 1)") and None)
        with database.reading() as c:
            assert c.execute("SELECT name FROM marks WHERE name IN ('new', 'in the log')").fetchall() == [
                ("in the log",)
            ]
    database.close()
    assert kept(copy) == before


# Texts


@pytest.mark.parametrize(
    ("before", "after"), [("okapi", "okaqi"), ('"role"', '"rOle"'), (NEEDLE + '"', NEEDLE + "!")]
)
def test_a_text_that_was_changed_is_noticed_when_it_is_read(
    home: Path, cli: Cli, before: str, after: str
) -> None:
    """In the last one, where JSON would notice, too."""
    path = home / "sessions.db"
    place = page_of(path, "messages", 13)
    content = path.read_bytes()
    at = content.index(before.encode(), place, place + PAGE)
    path.write_bytes(content[:at] + after.encode() + content[at + len(after) :])
    err = cli.refused("run", "hello", "--session", "s-1", "--model", "offline:demo", "--home", str(home))
    assert len(err.splitlines()) == 1
    assert "a text in the session store is damaged (its checksum does not fit): " in err
    out = cli("doctor", "--home", str(home))[1]
    assert "1 damaged texts, the first is body in messages, id " in out
    shown = cli("sessions", "show", "s-1", "--home", str(home))[1]
    assert "(this message is damaged)" in shown
    assert "sunny" in shown


def test_a_changed_recorded_reply_is_refused(home: Path) -> None:
    """A turn that continues after a crash trusts its recorded replies, and so does a fork."""
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as c:
        c.execute(
            "UPDATE effects SET reply = REPLACE(reply, 'Bern: sunny', 'Bern: rainy') WHERE kind = 'RunTool'"
        )
        c.commit()
    one = agent([text("done")], home, store=Store(home), session_id="s-1")
    turn = one.journal.recent()[0].id
    called = next(step.seq - 1 for step in one.journal.steps(turn) if step.source == "ExecuteTools")
    with pytest.raises(StoreError, match="its checksum does not fit"):
        one.journal.effects(turn, called)
    with pytest.raises(StoreError, match="its checksum does not fit"):
        one.fork(turn, at=called)


def test_a_message_that_is_damaged_does_not_keep_the_others_from_being_found(home: Path) -> None:
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as c:
        c.execute("UPDATE messages SET body = REPLACE(body, 'okapi', 'zebra') WHERE number = 1")
        c.execute("UPDATE marks SET value = 0 WHERE name = 'message_index_format'")
        c.commit()
    store = Store(home)
    assert len(search(store.database, "okapi").hits) == 5
    assert not search(store.database, "zebra").hits
    store.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(value=JSON)
def test_a_text_is_read_as_it_was_written(value: Any) -> None:
    text, crc = json_with_checksum(value)
    assert loads(text, crc) == json.loads(text) == value
    assert loads(text, None) == value, "one written by hand has no checksum"


@pytest.mark.slow
@given(value=JSON, chosen=st.randoms())
def test_no_flip_of_a_bit_is_passed_over(value: Any, chosen: random.Random) -> None:
    text, crc = json_with_checksum(value)
    content = text.encode()
    for _ in range(8):
        flipped = bytearray(content)
        flipped[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
        with pytest.raises((StoreError, UnicodeDecodeError)):
            loads(flipped.decode(), crc)
        with pytest.raises(StoreError, match="its checksum does not fit"):
            loads(text, crc ^ 1 << chosen.randrange(32))


# What looking costs


def test_a_damaged_file_of_before_is_not_upgraded(home: Path) -> None:
    class Newer(SqliteDatabase):
        versions = (*VERSIONS, ("CREATE TABLE more (id INTEGER)",))

    zero(home / "sessions.db", page_of(home / "sessions.db", "usage_by_at", 10))
    before = kept(home)
    with pytest.raises(StoreError, match="it is damaged"):
        Newer(home / "sessions.db")
    assert kept(home) == before


def test_a_file_is_checked_once_and_only_writers_wait_for_it(home: Path) -> None:
    looked, go = list[str](), threading.Event()

    class Slow(SqliteDatabase):
        def _look_through(self) -> None:
            assert go.wait(PATIENCE)
            looked.append("looked")
            super()._look_through()

    database = Slow(home / "sessions.db")
    waiting = database.submit(lambda c: c.execute("INSERT INTO marks VALUES ('new', 1)") and None)
    with database.reading() as c:
        assert c.execute("SELECT COUNT(*) FROM messages").fetchone() == (24,)
    assert not waiting.done()
    go.set()
    assert waiting.result(PATIENCE) is None

    def broken(c: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError):
        database.write(broken)  # what comes next has a connection of its own
    database.write(lambda c: None)
    database.close()
    assert looked == ["looked"]


def test_a_slow_check_of_a_file_is_reported(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            until(lambda: bool(caplog.records), "the line")
            return super().execute(*arguments)

    with contextlib.closing(sqlite3.connect(home / "sessions.db", factory=Slow)) as c:
        look_through(c, home / "sessions.db", long=0.0)
    assert caplog.messages == [f"looking through {home / 'sessions.db'} (0 MB) before it is written to"]


# Killed


WRITER = """
import sys
from pathlib import Path
from fsm_agent.sessions.store import Store
from tests.helpers.store_homes import written
store = Store(Path(sys.argv[1]))
number = 0
while True:
    written(store, [f"message {number} " + "word " * 200], "s-killed")
    number += 1
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
def test_a_file_whose_writer_was_killed_is_whole_or_not_written_to(
    home: Path, cli: Cli, damaged: bool
) -> None:
    """In the middle of it, with rows that are only in the log."""
    command = [sys.executable, "-c", WRITER, str(home)]
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 20:
            writer.send_signal(signal.SIGKILL)
            break
    writer.stdout.close()
    assert writer.wait(PATIENCE) == -signal.SIGKILL
    assert (home / "sessions.db-wal").stat().st_size > 0
    if damaged:
        zero(home / "sessions.db", page_of(home / "sessions.db", "usage_by_at", 10))
    before, at_home = kept(home), ("--home", str(home))
    code, out, err = cli("run", "-q", "hello", "--session", "s-killed", "--model", "offline:demo", *at_home)
    if damaged:
        assert code == 2
        assert "it is damaged" in err
        assert kept(home) == before
    else:
        assert (code, err) == (0, ""), out
        assert "message 19 word" in cli("sessions", "show", "s-killed", *at_home)[1]
        assert health(home) is not None
