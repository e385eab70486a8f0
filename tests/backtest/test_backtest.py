"""What recorded turns would have done: verdicts against turns that the engine really runs under the change."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.backtest import Backtest, Change, Found, Verdict
from fsm_agent.backtest.run import as_html, as_markdown
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.diagram.table_json import describe, table_from
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.machine import Machine
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.export import export_turn
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.sessions.store.rows import json_with_checksum
from fsm_agent.testing import FakeClock, ScriptedModel, call, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.processes import environment, printed, ran
from tests.helpers.recorded_turns import SETTINGS, measure, record

ROOT = Path(__file__).parents[2]
TURNS = 40
STATES = ROOT / "states"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with 40 turns, one a session."""
    home = tmp_path_factory.mktemp("corpus")
    record(home, TURNS, 7, each=1)
    return home


def moves(home: Path) -> list[list[tuple[str, str, str]]]:
    """The moves of every turn, oldest turn first."""
    turns = Turns(Store(home).database)
    return [
        [(step.event, step.row, step.dest) for step in turns.steps(info.id)]
        for info in reversed(turns.recent(1_000))
    ]


def first_other(was: list[Any], now: list[Any]) -> int:
    for number, (one, other) in enumerate(zip(was, now, strict=False), 1):
        if one != other:
            return number
    return 0 if len(was) == len(now) else min(len(was), len(now)) + 1


def assert_right(found: Found, was: list[Any], now: list[Any]) -> None:
    """Each verdict names the first move that is other in the turns that were run, and some are."""
    assert [one.at for one in found.verdicts] == [first_other(*pair) for pair in zip(was, now, strict=True)]
    assert 0 < found.counts["differs"] < found.total
    assert found.counts["missing"] == found.counts["refused"] == 0


def test_unchanged_turns_are_the_same(corpus: Path) -> None:
    found = Backtest.of_home(corpus).run()
    assert found.counts == {"same": TURNS, "requests": 0, "differs": 0, "missing": 0, "refused": 0}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"api_max_retries": 1}, marks=pytest.mark.slow),
        {"max_iterations": 3},
        pytest.param({"invalid_json_retries": 0}, marks=pytest.mark.slow),
        pytest.param({"empty": {"retries": 0, "nudges": 0}}, marks=pytest.mark.slow),
        pytest.param({"invalid_tool_strikes": 1}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_settings_are_judged_as_the_engine_runs_them(
    corpus: Path, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    """The same seed gives a turn the same replies, until its first different move."""
    record(tmp_path, TURNS, 7, settings, each=1)
    assert_right(Backtest.of_home(corpus).run(Change(settings=settings)), moves(corpus), moves(tmp_path))


FEWER_RUNGS = ('on("nothing", ASK_AGAIN, FALLBACK,', 'on("nothing", FALLBACK,')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("table.py", *FEWER_RUNGS),
        ("turn.py", '"reasks": settings.invalid_json_retries', '"reasks": 0'),
        ("turn.py", "retries = settings.api_max_retries - 1", "retries = 0"),
        ("logic/facts.py", "def text_prior(turn: TurnState) -> bool:",
         "def text_prior(turn: TurnState) -> bool:\n    return True"),
    ],
    ids=["a rung less", "asks once", "never again", "always answered"],
)  # fmt: skip
def test_other_states_are_judged_as_the_engine_runs_them(
    corpus: Path, tmp_path: Path, file: str, right: str, wrong: str
) -> None:
    """The states of another version play in processes of their own."""
    states, home = tmp_path / "states", tmp_path / "home"
    shutil.copytree(STATES, states)
    changed = states / "fsm_agent_states" / file
    assert changed.read_text().count(right) == 1
    changed.write_text(changed.read_text().replace(right, wrong))
    program = "import sys; from pathlib import Path; from tests.helpers.recorded_turns import record"
    program += "; record(Path(sys.argv[1]), int(sys.argv[2]), 7, each=1)"
    printed("-c", program, home, str(TURNS), env=environment(states))
    assert_right(Backtest.of_home(corpus).run(states=states), moves(corpus), moves(home))
    unchanged = Backtest.of_home(corpus).run(states=STATES)
    assert unchanged.counts["same"] == unchanged.total
    if (right, wrong) == FEWER_RUNGS:
        assert_right(Backtest.of_home(corpus).run(Change(machine=a_rung_less())), moves(corpus), moves(home))


def a_rung_less() -> Machine:
    """The turn's table without the first rung after a reply that is blank."""
    described = describe(TURN)
    (line,) = (
        one for one in described["lines"] if (one["state"], one["event"]) == ("EmptyRecovery", "nothing")
    )
    del line["ladder"][0]
    return Machine(table_from(described, "other"))


def one_turn(home: Path, *replies: Any, **options: Any) -> str:
    given = {"tools": [measure], "toolsets": [], "clock": FakeClock(), "settings": SETTINGS, **options}
    with closing(Agent(ScriptedModel(replies or MEASURED), home=home, **given)) as agent:
        return agent.run_conversation("how high is the river?").turn_id


MEASURED = (tools(call("measure", {"place": "mill"})), text("4 feet"))


def judge(home: Path, change: Change | None = None) -> Verdict:
    (found,) = Backtest.of_home(home).run(change).verdicts
    return found


def test_another_prompt_keeps_the_moves_and_shows_the_words(tmp_path: Path) -> None:
    one_turn(tmp_path)
    found = judge(tmp_path, Change(prompt="{recorded}\nBe brief."))
    assert (found.kind, found.requests) == ("requests", 2)
    assert found.words[0].startswith("CallModel: messages[0].content: …")
    assert found.words[0].endswith("{+ Be brief.+}")


def test_a_tool_that_is_not_there_is_found_where_it_was_called(tmp_path: Path) -> None:
    one_turn(tmp_path)
    found = judge(tmp_path, Change(tools={"measure": None}))
    assert (found.kind, found.at, found.state) == ("differs", 4, "ExecuteTools")
    assert found.now is not None
    assert found.now.row == "ExecuteTools.unknown_tools/1"
    other = judge(tmp_path, Change(tools={"measure": {"description": "How deep it is."}}))
    assert (other.kind, other.requests) == ("requests", 2)
    assert "[-The height of the river.-]{+How deep it is.+}" in other.words[0]


@pytest.mark.slow
def test_more_than_was_recorded_is_no_verdict_about_moves(tmp_path: Path) -> None:
    """These states ask a memory that no turn had; the journal has no reply to that."""
    home, states = tmp_path / "home", tmp_path / "states"
    one_turn(home)
    shutil.copytree(STATES, states)
    prepare = states / "fsm_agent_states" / "prepare.py"
    line = "    yield from tell_parts(turn)\n"
    prepare.write_text(prepare.read_text().replace(line, f'    yield Prefetch("the river")\n{line}'))
    (found,) = Backtest.of_home(home).run(states=states).verdicts
    assert (found.kind, found.at, found.state) == ("missing", 1, "Prepare")
    assert found.words == ("asks for Prefetch, to which its journal has no reply",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code"),
    [("print('hello')", 0), ("__import__('os')._exit(3)", 2)],
    ids=["prints", "ends its process"],
)
def test_a_state_that_prints_or_ends_its_process_loses_no_verdict(
    tmp_path: Path, cli: Cli, line: str, code: int
) -> None:
    home, states = tmp_path / "home", tmp_path / "states"
    one_turn(home)
    shutil.copytree(STATES, states)
    finalize = states / "fsm_agent_states" / "finalize.py"
    finalize.write_text(
        f"{finalize.read_text()}\n\n_finalize = finalize\n\n\ndef finalize(turn):\n    {line}\n"
    )
    with finalize.open("a") as file:
        file.write("    return (yield from _finalize(turn))\n")
    found = cli("backtest", "--home", str(home), "--states", str(states))
    assert found[0] == code, found
    assert ("      1  the same\n" in found[1]) is (code == 0)
    assert ("a process of the backtest ended early; given: exit status 3" in found[2]) is (code == 2)


@pytest.mark.slow
def test_states_that_cannot_be_imported_are_one_line(tmp_path: Path, cli: Cli) -> None:
    home, states = tmp_path / "home", tmp_path / "states"
    one_turn(home)
    (states / "fsm_agent_states").mkdir(parents=True)
    (states / "fsm_agent_states" / "__init__.py").write_text("raise RuntimeError('not today')\n")
    err = cli.refused("backtest", "--home", str(home), "--states", str(states))
    assert err.startswith("fsm-agent: a process of the backtest ended early; given: RuntimeError: not today;")


# What is touched


def test_nothing_is_touched_while_turns_are_played(corpus: Path) -> None:
    """No file, no socket, no process, no clock and no chance, as the interpreter itself reports them."""
    done = ran("-c", AUDITED, corpus)
    assert (done.stdout, done.stderr) == (f"{TURNS} of {TURNS} played\n", "")


AUDITED = """
import asyncio, random, sys, time
from pathlib import Path
from fsm_agent.backtest import Backtest, Change
from fsm_agent.backtest.verdict import judge_turn
from fsm_agent.backtest.playback import RecordedTurn

tests = Backtest.of_home(Path(sys.argv[1]))
turns = [RecordedTurn.read(tests.store, turn) for turn in tests.turns]
change = Change(settings={"max_iterations": 3}, prompt="{recorded} Be brief.")

async def play(turns):
    return [await judge_turn(turn, change) for turn in turns]

loop = asyncio.new_event_loop()
loop.run_until_complete(play(turns[:20]))  # loads and compiles what is loaded at first use
touched = []
watching = True

def hear(event, arguments):
    if watching and event.partition(".")[0] in ("open", "socket", "subprocess", "os", "sqlite3", "shutil", "import"):
        touched.append((event, arguments))

def refuse(*arguments):
    touched.append(("clock or chance", arguments))
    return 0.5

sys.addaudithook(hear)
kept = time.time, time.sleep, random.random
time.time = time.sleep = random.random = refuse
played = loop.run_until_complete(play(turns))
time.time, time.sleep, random.random = kept
watching = False
print(f"{len(played)} of {len(turns)} played", *touched[:3], sep="\\n")
"""


def files(folder: Path) -> dict[str, str]:
    """All files below, but those that SQLite keeps beside one that is read."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def test_the_home_stays_as_it_is(corpus: Path, cli: Cli) -> None:
    before = files(corpus)
    assert cli("backtest", "--home", str(corpus), "--set", "max_iterations=3", "--jobs", "2")[0] == 1
    assert files(corpus) == before


# What cannot be played


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE turns SET digest = 'another'",
         f"recorded with another version of the table: another, here {TURN.digest}"),
        ("UPDATE turns SET table_name = 'order'", "the turn is of another table; given: s-.*"),
        ("UPDATE effects SET reply = replace(reply, '4 feet', '5 feet') WHERE kind = 'CallModel'", ".*checksum.*"),
    ],
    ids=["another version of the table", "another table", "damaged"],
)  # fmt: skip
def test_a_turn_that_cannot_be_played_is_named_and_skipped(tmp_path: Path, change: str, why: str) -> None:
    one_turn(tmp_path)
    Store(tmp_path).database.write(lambda c: c.execute(change))
    found = judge(tmp_path)
    assert (found.kind, [bool(re.fullmatch(why, words)) for words in found.words]) == ("refused", [True]), (
        found
    )


def test_a_forked_turn_is_named_and_skipped(tmp_path: Path) -> None:
    turn = one_turn(tmp_path)
    with closing(
        Agent(ScriptedModel([text("5 feet")]), tools=[measure], toolsets=[], home=tmp_path)
    ) as agent:
        fork = agent.fork(turn, at=4).run().turn_id
    kinds = {one.turn: one.kind for one in Backtest.of_home(tmp_path).run().verdicts}
    assert kinds == {turn: "same", fork: "refused"}


def test_a_turn_that_was_edited_by_hand_is_no_basis(tmp_path: Path) -> None:
    """Its reply was replaced in the journal, with a checksum that is right: played again it is another turn."""
    one_turn(tmp_path)
    reply, crc = json_with_checksum({"is": "ModelReply", "text": "at once", "finish": "stop"})
    edit = "UPDATE effects SET reply = ?, reply_crc = ? WHERE kind = 'CallModel' AND seq = 2"
    Store(tmp_path).database.write(lambda c: c.execute(edit, (reply, crc)))
    found = judge(tmp_path)
    assert found.kind == "refused"
    assert found.words == ("played again unchanged, it does not come out as recorded: move 3 is another one",)


SECRET = "sk-" + "a1B2" * 12


def exported(home: Path, file: Path, turn: str, *, raw: bool) -> Path:
    lines = export_turn(Store(home).database, turn, raw=raw)
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_an_export_is_played_unless_it_is_masked_or_damaged(tmp_path: Path) -> None:
    plain = exported(tmp_path, tmp_path / "plain.jsonl", one_turn(tmp_path), raw=False)
    with Backtest.of_file(plain) as tests:
        assert [one.kind for one in tests.run().verdicts] == ["same"]
    replies = (tools(call("measure", {"place": SECRET})), text("4 feet"))
    hidden = exported(tmp_path, tmp_path / "hidden.jsonl", one_turn(tmp_path, *replies), raw=False)
    with Backtest.of_file(hidden) as tests:
        (found,) = tests.run().verdicts
    assert (found.kind, found.words) == ("refused", ("parts of it are masked, so it would be another turn",))
    hidden.write_text(hidden.read_text()[:-200])
    with pytest.raises(ConfigError), Backtest.of_file(hidden):
        pass


# On the command line


def test_the_report_is_for_people_programs_and_pull_requests(corpus: Path, cli: Cli, tmp_path: Path) -> None:
    page, text_of = tmp_path / "report.html", tmp_path / "report.md"
    words = ("backtest", "--home", str(corpus), "--set", "api_max_retries=1")
    code, out, err = cli(*words, "--html", str(page), "--markdown", str(text_of))
    other = len(Backtest.of_home(corpus).run(Change(settings={"api_max_retries": 1})).of("differs"))
    assert (code, err) == (1, "")
    assert out.startswith(
        f"{other} of {TURNS} turns take different moves.\n{TURNS} recorded turns · api_max_retries = 1\n"
    )
    assert "retries left: yes" in out
    assert f"**{other} of {TURNS} turns take different moves.**" in text_of.read_text()
    assert page.read_text().count("<section>") == 2 * other
    data = json.loads(cli(*words, "--json")[1])
    assert (data["counts"]["differs"], len(data["verdicts"])) == (other, TURNS)
    assert cli(*words, "--most", str(other))[0] == 0
    assert cli(*words, "--most", "1%")[0] == 1


def test_other_requests_count_if_that_is_asked_for(tmp_path: Path, cli: Cli) -> None:
    one_turn(tmp_path)
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("{recorded}\nBe brief.\n")
    words = ("backtest", "--home", str(tmp_path), "--prompt", str(prompt))
    assert cli(*words)[0] == 0
    assert cli(*words, "--same-requests")[0] == 1


def test_words_of_a_stranger_stay_words(tmp_path: Path) -> None:
    """A name of a tool, or what a model said, is not markup of the report."""
    one_turn(tmp_path)
    hostile = judge(tmp_path, Change(prompt="{recorded} <img src=x onerror=alert(1)> | @everyone `x`"))
    found = Found("<script>", [hostile])
    assert "<img" not in as_html(found)
    assert "<script>" not in as_html(found)
    assert "<img" not in as_markdown(found)
    assert "@everyone" not in as_markdown(found)


def test_a_run_that_was_cut_off_goes_on(corpus: Path, cli: Cli, tmp_path: Path) -> None:
    kept = tmp_path / "verdicts.jsonl"
    words = ("backtest", "--home", str(corpus), "--set", "max_iterations=3", "--resume", str(kept))
    whole = cli(*words)[1]
    lines = kept.read_text().splitlines(keepends=True)
    assert len(lines) == TURNS + 1
    marked = [line.replace('"asked": "', '"asked": "known ') for line in lines[1:21]]
    kept.write_text("".join([lines[0], *marked, lines[21][:40]]))
    assert cli(*words)[1] == whole
    again = kept.read_text().splitlines(keepends=True)
    assert sorted(again[1:21]) == sorted(marked), "those are not judged again"
    assert {json.loads(one)["turn"] for one in again[1:]} == {json.loads(one)["turn"] for one in lines[1:]}
    other = cli("backtest", "--home", str(corpus), "--resume", str(kept))
    assert other[0] == 2
    assert "the file is of another change" in other[2]


@pytest.mark.slow
def test_verdicts_of_other_state_code_are_refused(tmp_path: Path, cli: Cli) -> None:
    """The folder has the same name, and one file in it another line."""
    home, states, kept = tmp_path / "home", tmp_path / "states", tmp_path / "verdicts.jsonl"
    one_turn(home)
    shutil.copytree(STATES, states)
    words = ("backtest", "--home", str(home), "--states", str(states), "--resume", str(kept))
    assert cli(*words)[0] == 0
    before = kept.read_text()
    assert cli(*words)[0] == 0
    finalize = states / "fsm_agent_states" / "finalize.py"
    finalize.write_text(f"{finalize.read_text()}\n\nMORE = 1\n")
    assert "the file is of another change" in cli.refused(*words)
    assert "the file is of another change" in cli.refused(*words[:3], *words[5:])
    assert kept.read_text() == before


def test_a_sample_is_the_same_for_the_same_seed(corpus: Path) -> None:
    tests = Backtest.of_home(corpus)
    assert tests.sample(10, 3).turns == tests.sample(10, 3).turns != tests.sample(10, 4).turns
    assert len(tests.sample(10).turns) == 10
    assert set(tests.sample(10).turns) < set(tests.turns)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--set", "api_max_retries=0"), "api_max_retries"),
        (("--most", "half"), "--most cannot be read; given: half; allowed: a number of turns"),
        (("--sample", "0"), "--sample is too small; given: 0; allowed: 1 or more"),
        (("--prompt", "nowhere.txt"), "the prompt cannot be read"),
        (("--states", "."), "--states has no states in it; given: ."),
        (("--states", "bin"), "--states cannot be read ("),
        (("--states", "bin"), "given: bin; allowed: a git revision or a folder with fsm_agent_states"),
        (("--table", "no-such-revision"), "cannot be compared"),
        (("nowhere.jsonl",), "the file cannot be read"),
        (("--session", "nobody"), "nobody"),
        (("--exit", "never"), "there is no recorded turn to play"),
    ],
)
def test_bad_input_is_one_line(
    corpus: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    err = cli.refused("backtest", "--home", str(corpus), *words)
    assert line in err
    assert err.count("\n") == 1


def test_a_tool_that_no_turn_calls_is_refused(corpus: Path, cli: Cli, tmp_path: Path) -> None:
    schemas = tmp_path / "tools.json"
    schemas.write_text('{"mesure": null}')
    code, _, err = cli("backtest", "--home", str(corpus), "--tools", str(schemas))
    assert code == 2
    assert "no recorded turn calls this tool; given: mesure; allowed: close, measure, todo" in err
