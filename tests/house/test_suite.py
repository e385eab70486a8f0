"""A worker of the suite runs the tests of all its files: the last one of its list, too."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.suite import Run

ROOT = Path(__file__).parents[2]
FILES = ["tests/support/test_backoff.py", "tests/support/test_installation.py"]


def test_one_worker_runs_every_file() -> None:
    run = Run(FILES, ["-p", "no:cacheprovider"], workers=1)
    assert run.run() == 0
    ran = {case.id.split("[")[0] for case in run.cases if case.outcome == "passed"}
    wanted = {
        f"{file}::{name}"
        for file in FILES
        for name in re.findall(r"(?m)^def (test_\w+)", (ROOT / file).read_text())
    }
    assert ran == wanted
