"""The page of a watched table: what it shows after a save, and what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from fsm_agent.cli.debug import find_table
from fsm_agent.debug.live.loading import Broken
from fsm_agent.debug.live.page import LivePage
from fsm_agent.debug.live.watched import Watched
from fsm_agent.diagram.versions import Version
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.table import Table
from tests.debug.test_live_patch import SHORT
from tests.helpers.command_line import Cli
from tests.helpers.waiting import until

TOKEN = "the-token-of-this-test"
HEADERS = {"x-fsm-agent-token": TOKEN}


class InProcess:
    """Loads a text without a process of its own."""

    def load(self, text: bytes, wanted: Callable[[], bool] = lambda: True, path: Path | None = None) -> Any:
        known: dict[str, Any] = {}
        try:
            exec(text, known)
        except Exception as error:
            return Broken(f"{type(error).__name__}: {error}", getattr(error, "lineno", None))
        return Version("short.py", known["TABLE"])

    def close(self) -> None:
        pass


class Served:
    """A file, and the page that watches it; ``look`` takes a save in."""

    def __init__(self, folder: Path, predict: Any = None) -> None:
        self.path = folder / "short.py"
        self.path.write_text(SHORT)
        self.watched = Watched(self.path, predict=predict, loader=InProcess())
        app = LivePage(self.watched, (TOKEN,)).app(8123, TOKEN)
        self.client = TestClient(app, base_url="http://127.0.0.1:8123")
        self.watched.look()

    def save(self, text: str) -> dict[str, Any]:
        self.path.write_text(text)
        self.watched.look()
        return self.view()

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/api/live", headers=HEADERS).json()
        return found

    def edit(self, **body: Any) -> dict[str, Any]:
        body = {"mark": self.view()["shown"]["mark"], **body}
        found: dict[str, Any] = self.client.post("/api/live/edit", headers=HEADERS, json=body).json()
        self.watched.look()
        return found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.watched.close()


def test_without_the_token_nothing_is_told_or_changed(served: Served) -> None:
    for method, path in (("GET", "/api/live"), ("GET", "/api/live/events"), ("POST", "/api/live/edit")):
        assert served.client.request(method, path).status_code == 403
        assert (
            served.client.request(method, path, headers={**HEADERS, "host": "evil.example"}).status_code
            == 421
        )
    assert "live.js" in served.client.get("/").text
    assert served.client.get("/static/live.js").status_code == 200


def test_a_save_shows_the_picture_rows_proofs_and_bounds(served: Served) -> None:
    view = served.view()
    assert view["shown"]["proof"]["ok"]
    assert (view["shown"]["base"], view["shown"]["changes"]) == ("the first version seen", [])
    view = served.save(
        SHORT.replace('"tries": 3', '"tries": 5').replace('end("lost", "B"),', 'end("gone", "B"),')
    )
    assert [(one["change"], one["row"]) for one in view["shown"]["changes"]] == [("changed", "A.failed/2")]
    bounds = {one["quantity"]: (one["before"], one["after"]) for one in view["shown"]["proof"]["bounds"]}
    assert bounds["moves"] == (4, 6)
    assert 'id="state-A"' in view["shown"]["map"]
    assert view["shown"]["limits"] == [{"name": "tries", "value": 5, "before": 3, "written": True}]


def test_a_broken_text_leaves_the_last_picture(served: Served) -> None:
    view = served.save(SHORT + "\nx = (\n")
    assert view["broken"] == {"reason": "SyntaxError: '(' was never closed (<string>, line 18)", "line": 18}
    assert view["shown"]["name"] == "short"
    served.path.unlink()
    served.watched.look()
    assert "No such file" in served.view()["broken"]["reason"]
    assert served.save(SHORT)["broken"] is None


def test_a_table_that_never_ends_has_a_run_that_can_be_stepped(served: Served) -> None:
    shown = served.save(SHORT.replace('("tries",))', "())", 1).replace('left("tries"), ', 'left("tries"), '))[
        "shown"
    ]
    assert not shown["proof"]["ok"]
    (run,) = shown["runs"]
    assert [step["row"] for step in run["steps"]] == ["A.failed/1"] * 2
    assert (run["loop"], run["end"]) == (1, "this repeats without end, 1 moves each time")


def test_a_proved_change_is_written_and_taken_back(served: Served) -> None:
    assert served.edit(kind="limit", limit="tries", value=4) == {"written": True}
    assert served.path.read_text() == SHORT.replace('"tries": 3', '"tries": 4')
    assert served.view()["canUndo"]
    assert served.edit(kind="add", state="A", event="done", at=1, remedy="AGAIN")["written"]
    assert [one["change"] for one in served.view()["shown"]["changes"]].count("added") == 1
    for text in (SHORT.replace('"tries": 3', '"tries": 4'), SHORT):
        assert served.client.post("/api/live/undo", headers=HEADERS, json={}).json() == {"written": True}
        assert served.path.read_text() == text
        served.watched.look()
    assert (
        "no change to take back"
        in served.client.post("/api/live/undo", headers=HEADERS, json={}).json()["error"]
    )


def test_a_change_that_is_not_proved_is_not_written(served: Served) -> None:
    found = served.edit(kind="move", state="A", event="failed", rung=1, by=1)
    assert found["written"] is False
    assert "A.failed/2" in found["findings"][0]
    assert served.path.read_text() == SHORT


def test_a_rung_that_no_turn_could_take_is_not_written(served: Served) -> None:
    add = {"kind": "add", "state": "A", "event": "failed", "at": 2, "remedy": 'end("done", "B")'}
    found = served.edit(**add, guard='left("tries")')
    assert "A.failed/2" in found["findings"][0]
    assert served.path.read_text() == SHORT


def test_a_file_that_changed_meanwhile_is_not_overwritten(served: Served) -> None:
    mark = served.view()["shown"]["mark"]
    served.path.write_text(SHORT + "\n# mine\n")
    found = served.edit(mark=mark, kind="limit", limit="tries", value=4)
    assert "the file was changed since" in found["error"]
    assert served.path.read_text() == SHORT + "\n# mine\n"


def test_a_row_that_means_something_else_when_it_is_moved_is_refused(served: Served) -> None:
    served.save(
        SHORT.replace("            AGAIN,  # a second try is cheap", "            (AGAIN),").replace(
            'end("lost", "B"),  #', '(end("lost", "B")),  #'
        )
    )
    found = served.edit(kind="add", state="A", event="failed", at=3, remedy="AGAIN")
    assert "would mean something else" in found["error"] or "makes no table" in found["error"]


def test_what_the_page_may_not_send(served: Served) -> None:
    for body in (
        {},
        {"kind": "move"},
        {"kind": "move", "by": 7},
        {"kind": "limit", "limit": 3},
        {"kind": []},
    ):
        answer = served.client.post("/api/live/edit", headers=HEADERS, json=body)
        assert answer.status_code == 400
        assert "\n" not in answer.json()["error"]
    assert served.client.post("/api/live/edit", headers=HEADERS, content=b"[").status_code == 415


def test_a_prediction_is_shown_for_both_versions(tmp_path: Path) -> None:
    asked: list[Table] = []

    def predict(table: Table) -> dict[str, Any]:
        asked.append(table)
        return {"turns": 3, "figures": [{"name": "requests", "value": str(len(table.rows))}]}

    served = Served(tmp_path, predict)
    shown = served.save(SHORT.replace('end("lost", "B"),', 'end("gone", "B"),'))["shown"]
    served.watched.close()
    assert [one["figures"][0]["value"] for one in shown["predicted"]] == ["3", "3"]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("name", "says"), [("none.py", "cannot be read"), ("table.json", "only a table in Python")]
)
def test_a_file_that_cannot_be_watched_is_refused(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        Watched(tmp_path / name, loader=InProcess())


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_the_mode_of_the_file_stays(served: Served) -> None:
    served.path.chmod(0o640)
    assert served.edit(kind="limit", limit="tries", value=4)["written"]
    assert served.path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in served.path.parent.iterdir()] == ["short.py"]


def test_what_is_watched_is_found_by_file_or_module(tmp_path: Path) -> None:
    (tmp_path / "src" / "mine").mkdir(parents=True)
    for name in ("one.py", "src/mine/__init__.py", "src/mine/tables.py"):
        (tmp_path / name).write_text(SHORT)
    src = tmp_path / "src" / "mine"
    assert find_table("one.py", tmp_path) == (tmp_path / "one.py", "")
    assert find_table("one.py:TABLE", tmp_path) == (tmp_path / "one.py", "TABLE")
    assert find_table("mine.tables:TABLE", tmp_path) == (src / "tables.py", "TABLE")
    assert find_table("mine:TABLE", tmp_path) == (src / "__init__.py", "TABLE")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("gone.py", "there is no such file"), ("gone.py:TABLE", "there is no such file"),
        ("nowhere.tables:TABLE", "there is no such module"),
        ("table.scxml", "only a table in Python is watched"),
        ("table.js", "only a table in Python is watched"), ("", "only a table in Python is watched"),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_one_line_on_the_command_line(where: str, says: str, cli: Cli) -> None:
    err = cli.refused("diagram", "--live", where)
    assert says in err
    assert err.count("\n") == 1


def test_the_live_page_takes_no_other_picture(cli: Cli) -> None:
    for more in (["--map"], ["--state", "A"], ["mine:TABLE"]):
        code, _, err = cli("diagram", *more, "--live", "short.py")
        assert code == 2
        assert "the live page shows the table of its file" in err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text(SHORT)
    path.chmod(0)
    with pytest.raises(ConfigError, match="the file cannot be read"):
        Watched(path, loader=InProcess())


def test_a_version_that_fails_in_an_unforeseen_way_does_not_end_the_watch(tmp_path: Path) -> None:
    odd = [RuntimeError("odd")]

    def predict(table: Table) -> dict[str, Any]:
        if odd:
            raise odd.pop()
        return {"turns": 1, "figures": []}

    path = tmp_path / "short.py"
    path.write_text(SHORT.replace('on("done"', 'on("fine", end("done", "B"), why="x"),\n        on("done"'))
    watched = Watched(path, predict=predict, loader=InProcess())
    watched.start()
    until(lambda: watched.view.broken is not None)
    assert "RuntimeError: odd" in str(watched.view.broken)
    path.write_text(SHORT)
    until(lambda: watched.view.busy == "" and watched.view.broken is None)
    watched.close()
