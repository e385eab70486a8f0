"""The command that adds an extra: it fits how the package was installed, and names nothing that no index has."""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from fsm_agent.support.installation import command_for

ROOT = Path(__file__).parents[2]
METADATA = """\
Metadata-Version: 2.4
Name: fsm-agent
Version: 1
Requires-Dist: pydantic<3,>=2.11
Requires-Dist: starlette<2,>=1; extra == 'debug'
Requires-Dist: uvicorn<1,>=0.40; extra == 'debug'
Requires-Dist: uvloop<1,>=0.22; (sys_platform != 'win32') and extra == 'uvloop'
"""
NEEDS = "'starlette<2,>=1' 'uvicorn<1,>=0.40'"


@pytest.mark.parametrize(
    ("how", "extra", "command"),
    [
        ("wheel", "debug", f"{{python}} -m pip install {NEEDS}"),
        ("wheel", "uvloop", "{python} -m pip install 'uvloop<1,>=0.22'"),
        ("editable", "debug", "{python} -m pip install --editable '/src/fsm agent[debug]'"),
        ("pipx", "debug", f"pipx inject fsm-agent {NEEDS}"),
        ("uv tool", "debug", f"uv pip install --python {{python}} {NEEDS}"),
        ("uv venv", "debug", f"uv pip install --python {{python}} {NEEDS}"),
    ],
)
def test_the_command_fits_the_installation(tmp_path: Path, how: str, extra: str, command: str) -> None:
    info, python = tmp_path / "fsm_agent-1.dist-info", str(tmp_path / "bin" / "python")
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    origin = {"url": "file:///src/fsm%20agent", "dir_info": {"editable": how == "editable"}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    match how:
        case "pipx":
            (tmp_path / "pipx_metadata.json").touch()
        case "uv tool":
            (tmp_path / "uv-receipt.toml").touch()
        case "uv venv":
            (tmp_path / "pyvenv.cfg").write_text("home = /usr\nuv = 0.9.1\n")
    assert command_for(extra, Distribution.at(info), tmp_path, python) == command.format(python=python)


def test_no_message_names_a_package_that_an_index_may_not_have() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "fsm_agent").rglob("*.py")]
    pages.remove(ROOT / "docs" / "decisions.md")
    said = [path for path in pages if re.search(r"fsm[-_]agent\[\w+\]['\"]", path.read_text("utf-8"))]
    assert said == []
