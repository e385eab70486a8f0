from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import TurnResult
from fsm_agent.cli.debug import debug_session_of
from fsm_agent.cli.options import CliOptions
from fsm_agent.cli.screen import clean, preview, seconds
from fsm_agent.sessions.store import store_for
from fsm_agent.sessions.store.journal.read import Turns
from fsm_agent.testing import ScriptedServer, call, silence, slow, status, text, tools
from tests.helpers.command_line import Cli
from tests.helpers.processes import environment, ran
from tests.helpers.terminal import terminal
from tests.helpers.waiting import PATIENCE, until

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def cli(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """As everywhere, in a small directory."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "README.md").write_text("# A small project\n\nIt does little.\n")
    monkeypatch.chdir(work)
    return cli


def process(*arguments: str, warnings: str = "error", **options: Any) -> subprocess.Popen[str]:
    env = environment(PYTHONWARNINGS=warnings)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "fsm_agent", *arguments], text=True, env=env, **pipes)


@contextmanager
def shown(server: ScriptedServer, *words: str) -> Iterator[Any]:
    """A turn at a terminal of 80 columns, in the home that a test has."""
    command = ("run", *(words or ("tell",)), *server_options(server))
    home = Path(os.environ["FSM_AGENT_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    with terminal(*command, home=home, columns=80) as screen:
        yield screen


def server_options(server: ScriptedServer) -> Sequence[str]:
    return "--model", "local:m", "--base-url", server.url


# the program


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version") == (0, "fsm-agent 0.1.0\n", "")
    out = cli.ok("--help")
    listed = re.findall(r"^  ([a-z]+)  ", out.partition("Commands:")[2], re.MULTILINE)
    started = {
        "run", "chat", "acp", "mcp", "serve", "debug", "worker", "doctor", "examples", "simulate", "verify",
        "diagram",
    }  # fmt: skip
    kept = {
        "sessions", "approvals", "config", "models", "pending", "undo", "insights", "backtest", "predict",
        "eval", "report",
    }  # fmt: skip
    assert sorted(listed) == sorted(started | kept)


@pytest.mark.parametrize(
    "group",
    [
        "", "sessions", "pending", "approvals", "config", "models", "diagram", "eval", "mcp", "serve",
        "serve keys",
    ],
)  # fmt: skip
def test_no_sentence_about_a_command_is_cropped(group: str, cli: Cli) -> None:
    listed = cli(*group.split(), "--help")[1].partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize(("columns", "widest"), [(40, 40), (60, 60), (80, 80), (200, 110)])
def test_help_fits_the_terminal(columns: int, widest: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in ("--help",), ("run", "--help"), ("serve", "keys", "--help"):
        lengths = [len(line) for line in cli.ok(*words).splitlines()]
        assert max(lengths) <= widest, words
    assert max(len(line) for line in cli.ok("run", "--help").splitlines()) > widest * 3 // 4


def test_the_sentences_about_the_examples_are_whole(cli: Cli) -> None:
    code, out, err = cli("examples", "there")
    assert (code, err) == (0, "")
    for line in out.splitlines():
        assert re.fullmatch(r"there/\w+\.py  [A-Z].*\.", line)


@pytest.mark.parametrize("command", [("run", "hi"), ("doctor",), ("undo",)])
def test_in_a_folder_that_was_removed_a_command_is_one_line(command: tuple[str, ...], cli: Cli) -> None:
    gone = Path("gone")
    gone.mkdir()
    os.chdir(gone)
    os.rmdir(os.getcwd())
    err = cli.refused(*command)
    assert err == "fsm-agent: the current folder has been removed; allowed: a folder that is there\n"


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    """One process imports more and more; the package alone is looked at by tests/house/test_package.py."""
    app, verify = (
        {"rich", "openai", "prompt_toolkit", "pydantic", "transitions"},
        {"fsm_agent.agent", "openai"},
    )
    code = (
        "import sys, fsm_agent.cli.app\nprint(*sys.modules)\nimport fsm_agent.cli.verify\nprint(*sys.modules)"
    )
    done = ran("-c", code)
    loaded = [set(line.split()) for line in done.stdout.splitlines()]
    assert [loaded[0] & app, loaded[1] & verify] == [set(), set()]


# run


def test_the_answer_goes_to_standard_output_and_all_else_to_standard_error(cli: Cli) -> None:
    words = ("run", "list the files and read README.md", "--model", "offline:demo")
    code, out, err = cli(*words, "--verbose")
    assert code == 0
    assert not CONTROL.search(out + err)
    moves = re.findall(r"^  (\w+) +(\w+) +→ (\w+) +\d+\.\d\d s$", err, re.MULTILINE)
    assert moves[0] == ("Prepare", "ready", "BuildMessages")
    assert moves[-1] == ("CallLLM", "text", "Finalize")
    assert re.search(r"✓ read_file  \d\.\d\d s  path=README\.md  → 3 lines: 1 # A small project ", err)
    assert out.startswith("The folder")
    assert out.count("“A small project”") == 1
    assert out.endswith("(offline demo: no language model was used)\n")
    last = err.splitlines()[-1]
    assert re.match(r"completed · offline:demo · 2 requests · \d\.\d\d s", last)
    code, quiet, err = cli(*words, "--quiet")
    assert (code, quiet, err) == (0, out, "")
    assert "→ CallLLM" not in cli(*words)[2]


def test_json_is_one_object_and_nothing_else(cli: Cli) -> None:
    code, out, err = cli("run", "what is 6*7", "--model", "offline:demo", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert out.isascii()
    result = TurnResult.model_validate_json(out)
    assert "6*7 = 42" in (result.final_response or "")
    assert set(json.loads(out)) == set(TurnResult.model_fields)


LAST = ("--max-iterations", "1")
NO_GRACE = (*LAST, "--set", "budget.grace_call=false")


@pytest.mark.parametrize(
    ("script", "options", "code", "reason"),
    [
        ([text("hi")], (), 0, "text_response"),
        ([status(400)], (), 1, "non_retryable_error"),
        ([tools(call("get_time")), text("that is all")], LAST, 3, "max_iterations_summary"),
        ([tools(call("get_time")), text("never asked for")], NO_GRACE, 3, "budget_exhausted"),
    ],
)
def test_exit_codes(script: list[Any], options: tuple[str, ...], code: int, reason: str, cli: Cli) -> None:
    with ScriptedServer(script) as server:
        done, out, _ = cli("run", "go", *server_options(server), *options, "--json")
    assert (done, json.loads(out)["turn_exit_reason"]) == (code, reason)


def test_what_went_wrong_is_said_and_streamed_text_is_not_repeated(cli: Cli) -> None:
    with ScriptedServer([status(401), slow("one two three four", 0.01)]) as server:
        code, out, err = cli("run", "go", *server_options(server))
        streamed = cli("run", "go", *server_options(server))[1]
    assert (code, out) == (1, "")
    assert "Check the API key" in err
    assert err.splitlines()[-1].startswith("failed · non retryable error · local:m · 1 request")
    assert streamed.count("one two three four") == 1


@pytest.mark.parametrize("named", [["-"], []])
def test_text_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path, named: list[str]
) -> None:
    (tmp_path / "text").write_text("what is 2+3\n")
    with (tmp_path / "text").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        code, out, _ = cli("run", *named, "--model", "offline:demo")
    assert code == 0
    assert "2+3 = 5" in out


def test_control_sequences_of_models_and_tools_do_not_reach_the_terminal(cli: Cli) -> None:
    Path("evil.txt").write_text("\x1b]0;owned\x07\x1b[2Jred\x1b[31m [bold]plain[/bold]\n")
    script = [
        tools(call("read_file", {"path": "evil.txt"})),
        text("\x1b[2J\x1b[31mhi\r\x9b1m [red]all[/red] \u202eabc"),
    ]
    with ScriptedServer(script) as server:
        code, out, err = cli("run", "go", *server_options(server))
    assert code == 0
    assert not CONTROL.search(out + err)
    assert "\u202e" not in out
    assert r"\x1b]0;owned\x07" in err
    assert r"hi\x0d\x9b1m [red]all[/red] \u202eabc" in out


def test_nobody_at_the_terminal_means_no_and_yes_means_yes(cli: Cli) -> None:
    asked = ("run", "run `echo from-the-shell`", "--model", "offline:demo")
    assert "denied: no person is there to approve it" in cli(*asked)[1]
    code, _, err = cli(*asked, "--yes")
    assert code == 0
    assert re.search(
        r"✓ terminal  \S+ s  command=echo from-the-shell  → 2 lines: exit code 0 from-the-shell", err
    )


@pytest.mark.slow
def test_a_text_that_is_no_utf8_is_answered() -> None:
    words = [b"what is 1+1 \xff\xfe", "--model", "offline:demo", "--json"]
    done = ran("-m", "fsm_agent", "run", *words)
    assert "1+1 = 2" in json.loads(done.stdout)["final_response"]
    assert done.stderr == ""


@pytest.mark.behaviour("INT-01b")
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_keeps_the_partial_text() -> None:
    with ScriptedServer([silence("It was a dark and ")]) as server, shown(server) as screen:
        screen.until("It was a dark and")
        screen.running.send_signal(signal.SIGINT)
        assert screen.ended() == 130
    assert "interrupted · in call" in screen.plain
    store = store_for(os.environ["FSM_AGENT_HOME"])
    (turn,) = Turns(store.database).recent(1)
    assert store.session(turn.session).rows[-1].content == "It was a dark and "


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_second_ctrl_c_leaves_at_once(tmp_path: Path) -> None:
    started = tmp_path / "started"
    command = f"trap '' INT TERM; touch {started}; sleep 30"
    running = process("run", f"run `{command}`", "--model", "offline:demo", "--yes", warnings="default")
    until(started.exists, "the command")
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    seen = ""
    while "press Ctrl-C again to leave" not in seen:
        piece = os.read(running.stderr.fileno(), 65_536)
        assert piece, f"it ended: {seen}"
        seen += piece.decode("utf-8", "replace")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130
    assert "Traceback" not in err


INTERRUPTED_LOADING = """
import sys
from importlib.abc import MetaPathFinder


class Interrupting(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "fsm_agent.cli.app":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupting())
from fsm_agent.cli import main

sys.exit(main(["run", "hello"]))
"""


def test_ctrl_c_while_a_command_loads_is_no_traceback() -> None:
    done = ran("-c", INTERRUPTED_LOADING)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_a_closed_pipe_is_no_traceback() -> None:
    running = process("diagram", "--format", "md")
    assert running.stdout is not None
    running.stdout.close()
    assert running.stderr is not None
    assert running.stderr.read() == ""
    running.stderr.close()
    assert running.wait(PATIENCE) == 1


def test_run_takes_images_and_files(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("buy milk")
    (tmp_path / "a.gif").write_bytes(b"GIF89a\x01\x00\x01\x00")
    with ScriptedServer([text("seen")]) as server:
        parts = ("--image", f"{tmp_path}/a.gif", "--file", f"{tmp_path}/a.txt")
        code, out, _ = cli("run", "look", *parts, *server_options(server))
        (content,) = [row["content"] for row in server.bodies[0]["messages"] if row["role"] == "user"]
    assert code == 0
    assert "seen" in out
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert content[1]["image_url"]["url"].startswith("data:image/gif;base64,")
    assert content[2]["text"] == "[file a.txt]\nbuy milk"
    code, _, err = cli("run", "look", "--image", f"{tmp_path}/gone.png", "--model", "offline:demo")
    assert (code, err.count("\n")) == (2, 1)
    assert "the image cannot be read" in err
    err = cli.refused("run", "look", "--image", f"{tmp_path}/a.gif", "--model", "offline:demo")
    assert "image a.gif (image/gif, 10 bytes) cannot be sent: offline:demo does not read images" in err


# chat


def chat(lines: str, *options: str) -> tuple[int, str, str]:
    running = process("chat", *options, stdin=subprocess.PIPE)
    out, err = running.communicate(lines, timeout=PATIENCE)
    return running.returncode, out, err


def test_chat_keeps_its_session_and_obeys(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk")
    parts = f"/file {tmp_path}/notes.txt\n/image {tmp_path}/gone.png\n/image\n"
    with ScriptedServer([text("Hello Ada."), text("You are Ada.")]) as server:
        lines = f"/path\n{parts}I am\\\nAda\n\n/path\nwho am I?\n/nonsense\n/help\n/exit\nnever sent\n"
        code, out, err = chat(lines, *server_options(server))
        assert server.completions == 2, err
        first, *said = [row["content"] for row in server.bodies[1]["messages"] if row["role"] != "system"]
    assert code == 0
    assert "I am\nAda" in first[0]["text"]
    assert "[file notes.txt]\nbuy milk" in json.dumps(first).replace("\\n", "\n")
    assert said == ["Hello Ada.", "who am I?"], "only the next message has the file"
    assert "the image cannot be read (No such file or directory)" in err
    assert "/image FILE adds it to the next message." in out
    assert not CONTROL.search(out + err)
    assert out.startswith("There was no turn yet.\n")
    assert re.search(r"^  4  Finalize +text_response", out, re.MULTILINE)
    assert "There is no command /nonsense" in out
    assert "Alt-Enter" in out


@pytest.mark.slow
def test_undo_in_chat_puts_files_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one")
    monkeypatch.chdir(work)

    def write(content: str) -> Any:
        return tools(call("write_file", {"path": "a.txt", "content": content}))

    with ScriptedServer([write("two"), text("done"), write("three"), text("done")]) as server:
        lines = "change it\nonce more\n/undo words\n/undo\n/undo\n/undo 2 things\n"
        code, out, err = chat(lines, "--yes", *server_options(server))
    assert code == 0
    first, second = (line for line in out.splitlines() if line.startswith("Taken back"))
    assert first == "Taken back, from “once more” on; the transcript has 4 messages now."
    assert second.endswith("Files put back: 1 written as they were, 0 deleted.")
    assert "nothing to undo" in err
    assert "this number of turns cannot be undone" in err
    assert (work / "a.txt").read_text() == "one"


@pytest.mark.slow
def test_what_comes_through_a_pipe_does_not_steer_the_terminal() -> None:
    with ScriptedServer([text("Hello.")]) as server:
        code, out, err = chat("hi \x1b]0;owned\x07\n", *server_options(server))
    assert code == 0
    assert not CONTROL.search(out + err)
    assert r"› hi \x1b]0;owned\x07" in err


@pytest.mark.slow
def test_chat_goes_on_after_a_failed_turn() -> None:
    with ScriptedServer([status(400), text("fine now")]) as server:
        code, out, err = chat("first\nsecond", *server_options(server))
    assert code == 0
    assert "failed · non retryable error" in err
    assert "fine now" in out


# diagram, verify, simulate, doctor


@pytest.mark.parametrize("format", ["mermaid", "dot", "svg", "md", "json"])
def test_diagram_prints_what_the_generated_files_hold(format: str, cli: Cli) -> None:
    ending = {"mermaid": "mmd"}.get(format, format)
    out = cli.ok("diagram", "--format", format)
    assert out == (Path(__file__).parents[2] / "diagrams" / f"turn.{ending}").read_text()


FAULTS = {
    "rate_limit": "ClassifyError.limited", "server_error": "ClassifyError.server_error",
    "empty": "EmptyRecovery.nothing", "truncated_call": "CallLLM.cut_call", "overflow": "Compress.compressed",
    "parallel_tools": "ExecuteTools.done",
}  # fmt: skip
"""With a row that each of them takes."""


@pytest.mark.parametrize("faults", [*([fault] for fault in FAULTS), [*FAULTS]])
def test_simulate_survives_every_fault(faults: list[str], cli: Cli) -> None:
    code, out, err = cli("simulate", *(part for fault in faults for part in ("--fault", fault)), "--json")
    played = json.loads(out)
    assert (code, err) == (0, "")
    assert played["result"]["completed"]
    path = {f"{move['source']}.{move['event']}" for move in played["path"]}
    assert {FAULTS[fault] for fault in faults} <= path
    assert played["result"]["attempts"] == sum(len(move["answers"]) for move in played["path"])
    if "rate_limit" in faults:
        assert 7.0 in [move["waited"] for move in played["path"]]


def test_simulate_shows_guards_and_waits(cli: Cli) -> None:
    out = cli.ok("simulate", "--seed", "3")
    assert "retries left: yes" in out
    assert "7.00 s" in out
    assert out.splitlines()[0] == "completed · text_response · 8 requests"
    assert not CONTROL.search(out)
    assert out == cli("simulate", "--seed", "3")[1]
    assert out != cli("simulate", "--seed", "4")[1]


def test_doctor_is_content(cli: Cli) -> None:
    out = cli.ok("doctor")
    assert out.splitlines()[-1] == "all is well"
    assert re.search(
        r"^ok +table +\d+ rows, proved: exactly one is open, every turn ends$", out, re.MULTILINE
    )


def test_doctor_says_what_to_do_and_shows_no_key(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENAI_API_KEY", " very-secret-value")
    monkeypatch.setenv("FSM_AGENT_API_MAX_RETRIES", "0")
    code, out, _ = cli("doctor", "--home", str(tmp_path / "file" / "home"))
    assert code == 1
    assert "very-secret-value" not in out
    assert re.search(r"^problem +home .*; give a writable --home", out, re.MULTILINE)
    assert re.search(
        r"^problem +settings .*api_max_retries \(FSM_AGENT_API_MAX_RETRIES\) is out of range",
        out,
        re.MULTILINE,
    )
    assert re.search(r"^problem +keys +OPENAI_API_KEY has blanks around it", out, re.MULTILINE)
    assert out.splitlines()[-1] == "problems: 3"


# helpers


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"), ("\x1b[1;31mred\x1b[0m", r"\x1b[1;31mred\x1b[0m"),
        ("\x1b]8;;http://x\x1b\\link\x07", "\\x1b]8;;http://x\\x1b\\link\\x07"),
        ("\x1b]0;\nhidden\x07", "\\x1b]0;\nhidden\\x07"),
        ("a\rb\r\nc\x07\x00\x7f", "a\\x0db\nc\\x07\\x00\\x7f"), ("\x1b", r"\x1b"),
        ("\u202egnp.exe\ud800", r"\u202egnp.exe\ud800"),
    ],
)  # fmt: skip
def test_clean(given: str, shown: str) -> None:
    assert clean(given) == shown


def test_preview_and_seconds() -> None:
    assert preview({"path": "a\nb", "n": 1}, 40) == "path=a b  n=1"
    assert preview("x" * 100, 10) == "x" * 9 + "…"
    assert [seconds(value) for value in (0.041, 12.34, 200)] == ["0.04 s", "12.3 s", "3 min 20 s"]


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    env = environment(FSM_AGENT_MODEL="offline:demo", FSM_AGENT_HOME=str(tmp_path))
    done = ran(str(example), cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    said = {
        "order": "sent (completed)",
        "review_loop": "accepted: A machine",
        "provider_options": "2,962 m",
        "nested": "",  # these two are run by tests/workflow
        "parallel": "",
        "typed_answers": "City(name='Bern', people=144000)",
    }
    assert said.get(example.stem, "(offline demo: no language model was used)") in done.stdout


# Tools of one's own

KITCHEN = '''
from fsm_agent import tool

@tool(effect="pure")
def oven(degrees: int) -> str:
    """Heat the oven."""
    with open("heated", "a") as file:
        file.write(f"{degrees}\\n")
    return "it is hot"

ALL = [oven]
'''


@pytest.mark.parametrize("name", ["oven", "ALL"])
def test_a_tool_of_ones_own_is_named_on_the_command_line(cli: Cli, name: str) -> None:
    module = f"kitchen_{name.lower()}"
    Path(f"{module}.py").write_text(KITCHEN)
    with ScriptedServer([tools(call("oven", {"degrees": 180})), text("done")]) as server:
        code, out, _ = cli("run", "bake", *server_options(server), "--tool", f"{module}:{name}")
    assert code == 0
    assert "done" in out.splitlines()
    assert Path("heated").read_text() == "180\n"
    assert "it is hot" in str(server.bodies[-1]["messages"])


@pytest.mark.behaviour("FSM-11")
def test_a_debugger_steps_a_tool_of_ones_own_from_the_command_line(tmp_path: Path, cli: Cli) -> None:
    Path("kitchen_debugged.py").write_text(KITCHEN)
    with ScriptedServer([tools(call("oven", {"degrees": 180})), text("done")]) as server:
        home, mine = str(tmp_path / "home"), ["kitchen_debugged:oven"]
        given = CliOptions(model="local:m", base_url=server.url, home=home, tools=mine)
        session = debug_session_of(given)
        debugger = session.start("bake")
        debugger.breakpoint("state", "ExecuteTools")
        debugger.order("continue")
        asyncio.run(debugger.settled())
        assert not Path("heated").exists()
        debugger.order("step")
        asyncio.run(debugger.settled())
        assert Path("heated").read_text() == "180\n"
        session.close()


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_the_answer_is_printed_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "city.json").write_text(json.dumps(SCHEMA))
    with ScriptedServer(
        [text("Bern"), text('```json\n{"city": "Zürich"}\n```'), *[text("no")] * 3]
    ) as server:
        asked = ("run", "which?", "--output-schema", f"{tmp_path}/city.json", "--model", "local:m")
        code, out, _ = cli(*asked, "--base-url", server.url)
        assert (code, json.loads(out)) == (0, {"city": "Zürich"})
        code, out, err = cli(*asked, "--base-url", server.url)
        assert code == 1
        assert out == ""
        assert err == "error: The model gave no answer of the type that was asked for: it is not JSON.\n"


def test_the_whole_result_has_it_too(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('{"type": "array", "items": {"type": "integer"}}')
    with ScriptedServer([text("[1, 2]")]) as server:
        code, out, _ = cli(
            "run", "which?", "--json", "--output-schema", f"{tmp_path}/list.json", "--model", "local:m",
            "--base-url", server.url,
        )  # fmt: skip
    assert (code, json.loads(out)["output"], json.loads(out)["final_response"]) == (0, [1, 2], "[1, 2]")
