"""Another model checker confirms the search: spin stores the same number of states, and finds what is
wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsm_agent.fsm.table import Counter, Rung, Table, end, left, lines_of, on
from fsm_agent.fsm.verify import search
from fsm_agent.fsm.verify.reach import STATES_OF_THE_END, limit_names, promela
from fsm_agent_states.table import TURN
from tests.helpers.mutants import changed, without
from tests.helpers.sample import one_of
from tests.helpers.tables import DEFAULTS, courier

ONES = dict.fromkeys(limit_names(TURN), 1)


def small() -> Table:
    again = Rung("again", "Ask", left("tries"), ("tries",))
    lines = lines_of({"Ask": [on("bad", again, end("gave_up", "Done"), why="")]})
    return Table("small", ("Ask", "Done"), "Done", (Counter("tries"), Counter("calls", cap=True)), lines)


def test_a_row_is_an_option() -> None:
    text = promela(small(), {"tries": 300})
    assert text.startswith("/* table small (")
    assert "limits: tries 300 */" in text
    assert text[text.index("#define") :] == (
        "#define AT_Ask 0\n#define AT_Done 1\n\nbyte state = AT_Ask;\nshort n_tries = 0;\n"
        "byte n_calls = 0;\n\nactive proctype turn() {\n  do\n"
        "  :: d_step { state == AT_Ask && n_tries < 300 -> n_tries"
        " = (n_tries < 300 -> n_tries + 1 : 300); state = AT_Ask }\n  :: atomic { state == AT_Ask &&"
        " !(n_tries < 300) -> n_tries = 0; n_calls = 0; state = AT_Done; break }\n  od\n}\n"
    )
    assert "n_calls" not in promela(small(), {"tries": 300}, caps=False)
    assert "int n_tries" in promela(small(), {"tries": 40_000})


def test_every_row_and_limit_of_the_turn_is_in_its_model() -> None:
    text = promela(TURN, DEFAULTS)
    assert len(re.findall(r"^  :: ", text, re.MULTILINE)) == len(TURN.rows)
    assert all(f"{name} {value}" in text for name, value in DEFAULTS.items())
    with pytest.raises(KeyError, match="rekeys"):
        promela(TURN, {name: value for name, value in DEFAULTS.items() if name != "rekeys"})


@dataclass(frozen=True)
class Verdict:
    """What spin says: states stored, and the errors of the two checks in words ("" for none)."""

    stored: int
    stuck: str
    endless: str


def run(*command: str, cwd: Path) -> str:
    """The output of a program. One that is missing is a failure and no reason to skip: the comparison would
    go unnoticed."""
    if shutil.which(command[0]) is None:
        pytest.fail(f"{command[0]} is not installed: apt-get install {command[0]}, or see spinroot.com")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def spin(text: str, folder: Path) -> Verdict:
    """Search a model for stuck states, then for endless runs. The depth is set far above what is needed; if
    it is reached nonetheless, the search is not complete and nothing counts."""
    (folder / "model.pml").write_text(text)
    run("spin", "-a", "model.pml", cwd=folder)
    run("gcc", "-O0", "-w", "-o", "stuck", "pan.c", cwd=folder)  # optimizing takes longer than it saves
    run("gcc", "-O0", "-w", "-DNP", "-o", "endless", "pan.c", cwd=folder)
    stuck = run(str(folder / "stuck"), "-m1000000", cwd=folder)
    endless = run(str(folder / "endless"), "-l", "-m1000000", cwd=folder)
    for out in (stuck, endless):
        assert "max search depth too small" not in out, out
        assert "errors:" in out, out
    stored = re.search(r"^ *(\d+) states, stored", stuck, re.MULTILINE)
    assert stored, stuck
    return Verdict(int(stored[1]), error_of(stuck), error_of(endless))


def error_of(out: str) -> str:
    found = re.search(r"^pan:1: (.*?) \(at depth", out, re.MULTILINE)
    count = re.search(r"errors: (\d+)", out)
    assert count is not None
    assert bool(found) is bool(int(count[1])), out
    return found[1] if found else ""


def agree(table: Table, limits: Mapping[str, int], folder: Path, *, caps: bool) -> int:
    """spin and exact search see the same pairs, no stuck one and no endless run; how many pairs."""
    found = search(table, limits, caps=caps)
    assert found is not None
    assert spin(promela(table, limits, caps=caps), folder) == Verdict(
        len(found.pairs) + STATES_OF_THE_END, "", ""
    )
    assert found.ends
    return len(found.pairs)


FEW = dict.fromkeys(
    ("iterations", "retries", "overflows", "invalid_tool_rounds", "empties", "patience", "fallbacks"), 1
)
CAPPED = {**dict.fromkeys(ONES, 0), **FEW, "summary_calls": 2, "attempts": 5, "sends": 3}
NONE = dict.fromkeys(("free_rounds", "summary_calls", "fallbacks", "rekeys"), 0)
ITS_OWN = DEFAULTS | {"iterations": 1, "repairs": 1, "lost_requests": 1, "summarizers": 1, **NONE}
COURIER = {"tries": 3, "rings": 2, "repacks": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "limits", "caps", "least", "most"),
    [
        *one_of(
            [
                pytest.param(TURN, ONES, False, 411_528, 411_528, id="every limit 1"),
                pytest.param(TURN, ITS_OWN, False, 10_000, 10_000_000, id="its own limits and one iteration"),
            ],
            "spin",
        ),
        pytest.param(TURN, CAPPED, True, 300, 10_000_000, id="with its caps"),
        pytest.param(courier(), COURIER, True, 25, 25, id="a table of another kind"),
    ],
)
def test_spin_agrees(
    table: Table, limits: Mapping[str, int], caps: bool, least: int, most: int, tmp_path: Path
) -> None:
    assert least <= agree(table, limits, tmp_path, caps=caps) <= most


@pytest.mark.slow
def test_spin_finds_a_stuck_state(tmp_path: Path) -> None:
    table = without(without(courier(), "Ring.closed/3"), "Ring.open")
    assert spin(promela(table, {"tries": 1, "rings": 1, "repacks": 1}), tmp_path).stuck == "invalid end state"


@pytest.mark.slow
def test_spin_finds_an_endless_run(tmp_path: Path) -> None:
    table = changed(TURN, "ClassifyError.overloaded/1", spends=())
    limits = dict.fromkeys(ONES, 0) | {"iterations": 1, "retries": 1, "patience": 1}
    verdict = spin(promela(table, limits, caps=False), tmp_path)
    assert (verdict.stuck, verdict.endless) == ("", "non-progress cycle")
