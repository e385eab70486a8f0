"""A file about a turn that a user sends: what is in it, what is not, and what a hostile one can do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.cli.turn_report import MOST_BYTES, TurnReport, read_report, report_of
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.testing import FakeClock, ScriptedModel, call, status, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.processes import ran
from tests.helpers.recorded_turns import SETTINGS, measure

KEY = "sk-proj-" + "a1B2" * 10
OWN = "correct-horse-battery"


def recorded(home: Path, *replies: Any, asked: str = f"how high is it? {KEY}", **options: Any) -> str:
    agent = Agent(
        ScriptedModel([*replies, text("done")]), tools=[measure], toolsets=[], home=home, clock=FakeClock(),
        settings={**SETTINGS, "max_iterations": 30}, **options,
    )  # fmt: skip
    turn = agent.run_conversation(asked).turn_id
    agent.close()
    return turn


def failed(home: Path, **options: Any) -> str:
    """Six rounds of tools, then a wrong key."""
    rounds = [tools(call("measure", {"place": f"mile {number}"})) for number in range(6)]
    return recorded(home, *rounds, status(401, f"invalid key {KEY}"), **options)


def test_a_report_is_masked_shrunk_and_comes_out_again(tmp_path: Path) -> None:
    turn = failed(tmp_path, system_prompt=f"You know {OWN}.")
    made = report_of(Store(tmp_path), turn, secrets={OWN})
    file = made.to_text()
    assert KEY not in file
    assert OWN not in file
    assert (made.exit, made.outcome, len(made.moves)) == ("non_retryable_error", "failed", 22)
    assert made.recording is not None
    assert (len(made.recording.model), made.shrunk) == (1, 6)
    again = read_report(file, "a file")
    assert again == made
    assert again.replay() == ""


def test_the_whole_has_every_reply(tmp_path: Path) -> None:
    made = report_of(Store(tmp_path), failed(tmp_path), whole=True)
    assert made.recording is not None
    assert (len(made.recording.model), made.recording.moves) == (7, made.moves)
    assert made.replay() == ""


@pytest.mark.slow
def test_the_test_of_a_report_passes_where_there_is_nothing_else(tmp_path: Path) -> None:
    made = report_of(Store(tmp_path / "home"), failed(tmp_path / "home"))
    (tmp_path / "test_sent.py").write_text(made.as_test())
    done = ran("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(tmp_path / "test_sent.py"))
    assert "1 passed" in done.stdout


def test_a_recording_that_does_not_fit_is_left_out_and_named(tmp_path: Path) -> None:
    made = report_of(Store(tmp_path), recorded(tmp_path, asked="x" * MOST_BYTES))
    file = made.to_text()
    assert len(file) < 10_000
    short = read_report(file, "a file")
    assert short.recording is None
    assert "a report has at most 2,000,000" in short.replay()
    with pytest.raises(ConfigError, match="the report has no recording"):
        short.as_test()


def test_a_turn_that_cannot_be_replayed_has_a_report_that_says_why(tmp_path: Path) -> None:
    turn, store = failed(tmp_path), Store(tmp_path)
    store.database.write(lambda c: c.execute("UPDATE turns SET ended = NULL"))
    assert report_of(store, turn).note == "the turn has not ended"
    store.database.write(lambda c: c.execute("UPDATE turns SET ended = 1, table_name = 'order'"))
    made = report_of(store, turn)
    assert (made.note, made.recording, len(made.moves)) == ("the turn is one of the table order", None, 22)


def test_other_moves_and_another_answer_are_named(tmp_path: Path) -> None:
    made = report_of(Store(tmp_path), recorded(tmp_path))
    value = json.loads(made.to_text())
    value["recording"]["answer"] = "no"
    assert read_report(json.dumps(value), "f").replay() == "the answer is another one"
    value["recording"]["moves"][2] = "CallLLM.tools"
    assert read_report(json.dumps(value), "f").replay() == "move 3 is CallLLM.text instead of CallLLM.tools"
    value["recording"]["model"] = []
    assert (
        "asked for something that is not in the record: CallModel"
        in read_report(json.dumps(value), "f").replay()
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "session"}, "kind: Input should be 'fsm-agent report'"),
        ({"format": 2}, "format: Input should be 1"), ({"more": 1}, "more: Extra inputs are not permitted"),
        ({"moves": [1]}, "moves.0: Input should be a valid string"),
        ({"recording": {"message": ""}}, "recording.history: Field required"),
        ("{", "this is not a report of a turn"), ("[" * 100_000, "this is not a report of a turn"),
        ("x" * (MOST_BYTES + 1), "more than 2,000,000 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused_in_one_line(change: Any, says: str, tmp_path: Path) -> None:
    value = json.loads(report_of(Store(tmp_path), recorded(tmp_path)).to_text())
    with pytest.raises(ConfigError, match=says) as caught:
        read_report(change if isinstance(change, str) else json.dumps({**value, **change}), "a file")
    assert "\n" not in str(caught.value)


DAMAGE: dict[str, Any] = {
    "settings": {"max_iterations": "many"}, "opened": {"runtime": 3}, "model": [{"text": {}}],
    "message": {"a": [[[]]]}, "history": [{"role": "nobody"}],
}  # fmt: skip


@pytest.mark.parametrize("part", DAMAGE)
def test_a_damaged_recording_is_a_verdict_and_no_error(part: str, tmp_path: Path) -> None:
    value = json.loads(report_of(Store(tmp_path), recorded(tmp_path)).to_text())
    value["recording"][part] = DAMAGE[part]
    assert read_report(json.dumps(value), "a file").replay() != ""


def test_words_of_a_report_are_no_code_in_its_test(tmp_path: Path) -> None:
    """The ids, the question, and the exit come from a stranger; the test has them as texts."""
    value = json.loads(report_of(Store(tmp_path), recorded(tmp_path)).to_text())
    trap = '"""\nimport os; os.mkdir("trapped")\n"""'
    for name in ("turn", "asked", "exit"):
        value[name] = trap + "\\"
    value["recording"]["answer"] = value["recording"]["message"] = trap
    made = compile(read_report(json.dumps(value), "a file").as_test(), "test_sent.py", "exec")
    assert {name for name in made.co_names if name != "annotations"} <= {
        "__doc__", "fsm_agent.backtest.replay", "Replay", "MOVES", "MESSAGE", "HISTORY", "MODEL", "TOOLS", "OTHERS", "OPENED",
        "SETTINGS", "FINAL_RESPONSE", "test_turn",
    }  # fmt: skip


WATCHED = """
import sys
from fsm_agent.cli.turn_report import read_report
text = open(sys.argv[1]).read()
read_report(text, "f").replay()  # loads and compiles what is loaded at first use
touched = []
OWN = "socket.__new__"  # an event loop makes a pair of sockets for itself
sys.addaudithook(lambda event, _: event.partition(".")[0] in WATCHED and event != OWN and touched.append(event))
WATCHED = {"open", "socket", "subprocess", "os", "sqlite3", "shutil", "import", "exec", "compile"}
assert read_report(text, "f").replay() == ""
WATCHED = ()
print(touched)
"""


@pytest.mark.slow
def test_a_replay_touches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "turn.report.json"
    file.write_text(report_of(Store(tmp_path), failed(tmp_path)).to_text())
    done = subprocess.run([sys.executable, "-c", WATCHED, file], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_the_command_writes_shows_and_makes_a_test(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", OWN)
    turn, file = failed(tmp_path / "home", system_prompt=f"You know {OWN}."), tmp_path / "r.json"
    home = ("--home", str(tmp_path / "home"))
    code, out, err = cli("report", turn, "-o", str(file), *home)
    assert (code, out) == (0, "")
    assert f"turn {turn} in {file}, secrets masked, 6 model answers left out" in err
    assert OWN not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert TurnReport.model_validate(json.loads(cli.ok("report", turn, *home))) == read_report(
        file.read_text(), "f"
    )
    shown = cli.ok("report", "--show", str(file))
    assert "22 moves: Prepare.ready → 6 × " in shown
    assert "ended with non_retryable_error (failed)" in shown
    assert "replayed: the same moves, the same answer" in shown
    assert "def test_turn() -> None:" in cli.ok("report", "--show", str(file), "--pytest")
    file.write_text(file.read_text().replace('"ClassifyError.rejected', '"ClassifyError.other'))
    code, out, _ = cli("report", "--show", str(file))
    assert (code, "not as recorded" in out) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "a report is written of a turn, or shown"),
        (("one", "--show", "two"), "a report is written of a turn, or shown"),
        (("one", "--pytest"), "a test is made of a report"),
        (("--show", "nothing.json"), "the report cannot be read"),
        (("no-one",), "no such session; given: no-one"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], says: str, cli: Cli) -> None:
    assert says in cli.refused("report", *arguments)
