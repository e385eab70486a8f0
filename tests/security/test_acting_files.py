"""A file that later runs or instructs needs approval to be written, and the person sees why."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fsm_agent import Agent, tool
from fsm_agent.approvals.acting_files import ACTING_FILES, acts_later, as_names
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.testing import ScriptedModel, call, text, tools

ROOT = Path(__file__).parents[2]
IN_A_PROJECT = (
    "FSM_AGENT.md", "AGENTS.md", "CLAUDE.md", "sub/AGENTS.md", ".cursor/rules/x.mdc", ".cursorrules", ".mcp.json",
    ".agents/skills/x/SKILL.md", ".claude/skills/x/run.sh", ".claude/settings.local.json", ".envrc", "sub/.envrc",
    ".vscode/tasks.json", ".vscode/settings.json", ".idea/workspace.xml", ".devcontainer/devcontainer.json",
    ".githooks/pre-commit", ".husky/pre-push", ".pre-commit-config.yaml", ".github/workflows/ci.yml", ".gitlab-ci.yml",
    ".ci/run", "Jenkinsfile", "sitecustomize.py", "venv/lib/python3.11/site-packages/x.pth", ".npmrc", ".pypirc",
    "pip.conf", "x.code-workspace", ".cargo/config.toml", ".gdbinit", "hooks/../.envrc", "./.envrc",
)  # fmt: skip
IN_THE_HOME = (
    ".bashrc", ".zshrc", ".profile", ".gitconfig", ".config/git/config", ".config/autostart/x.desktop", ".ssh/config",
    ".ssh/authorized_keys", ".config/systemd/user/x.service", ".netrc", ".tmux.conf", ".local/bin/ls", ".unheard-of",
    ".config/unheard-of/settings", ".vimrc",
)  # fmt: skip
OTHER_LETTERS = (
    ".ENVRC", "agents.MD", ".vsCode/Tasks.json", "．envrc", ".en\u200bvrc", "AGENTS.md.", "claude.md ", "AGENTS.md::$DATA",
    ".GitHub/Workflows/x.yml", "\ufb01x/../.envrc", "CLAUDE\u2024md", "ＡＧＥＮＴＳ.md",
)  # fmt: skip
ORDINARY = (
    "main.py", "src/agents.py", "docs/claude.markdown", "Makefile", "conftest.py", "package.json", "README.md", "env.rc",
    "tests/vscode/tasks.json", ".gitignore", ".gitattributes", "src/profile.py", "a/b/c/d.txt", "envrc", "x.pth.txt",
    "github/workflows/ci.yml", "ssh/config", "crontab.py", "notes.md", "pyproject.toml", ".env.example",
)  # fmt: skip


class Desk:
    """An agent with a person who answers every question the same way."""

    def __init__(self, workdir: Path, answer: Any = None, **options: Any) -> None:
        self.workdir, self.answer, self.options = workdir, answer, options
        self.asked: list[AskApproval] = []

    def person(self, question: AskApproval) -> Any:
        self.asked.append(question)
        return self.answer

    def calls(self, *calls: Any) -> list[str]:
        """The results of these calls of one reply."""
        person = {} if self.answer is None else {"approval": self.person}
        options = {"toolsets": ["files"], "callbacks": person}
        model, home = ScriptedModel([tools(*calls), text("done")]), self.workdir.parent / "agent-home"
        with Agent(model, workdir=self.workdir, home=home, **options | self.options) as agent:
            result = agent.run_conversation("go")
        return [row["content"] for row in result.messages if row["role"] == "tool"]


def written(path: str, content: str = "x") -> Any:
    return call("write_file", {"path": path, "content": content})


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "account"))
    (tmp_path / "account").mkdir()
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_nobody_there_means_no_and_says_why(work: Path) -> None:
    answers = Desk(work).calls(*(written(path) for path in (*IN_A_PROJECT, *OTHER_LETTERS)))
    for path, answer in zip((*IN_A_PROJECT, *OTHER_LETTERS), answers, strict=True):
        assert "denied: no person is there to approve it; it is asked because" in answer, (path, answer)
    assert files(work) == []


WRITES = {"settings": {"approval": {"allow": ["write_file", "patch_file"]}}}
"""A rule for files of the project."""


def test_ordinary_files_are_written_without_a_question_where_a_rule_allows_it(work: Path) -> None:
    desk = Desk(work, "once", **WRITES)
    answers = desk.calls(*(written(path) for path in ORDINARY))
    assert (desk.asked, [one for one in answers if "a new file" not in one]) == ([], [])
    assert len(files(work)) == len(ORDINARY)


@pytest.mark.behaviour("APPR-11")
def test_writing_a_file_is_asked_about_unless_a_rule_allows_it(work: Path) -> None:
    (work / "notes.md").write_text("old")
    patch = call("patch_file", {"path": "notes.md", "old_text": "old", "new_text": "new"})
    answers = Desk(work).calls(written("main.py"), patch)
    assert [answer[:41] for answer in answers] == ["denied: no person is there to approve it."] * 2
    assert (files(work), (work / "notes.md").read_text()) == (["notes.md"], "old")
    desk = Desk(work, "once")
    desk.calls(written("main.py"), patch)
    assert [(one.name, one.why) for one in desk.asked] == [("write_file", ""), ("patch_file", "")]
    assert (files(work), (work / "notes.md").read_text()) == (["main.py", "notes.md"], "new")


def test_a_rule_for_all_files_is_none_for_those_that_act_later(work: Path) -> None:
    answers = Desk(work, **WRITES).calls(written(".envrc"), written("main.py"))
    assert "it is asked because .envrc is run" in answers[0]
    assert files(work) == ["main.py"]


def test_a_person_is_told_why_and_a_yes_lets_it_through(work: Path) -> None:
    (work / "AGENTS.md").write_text("old")
    desk = Desk(work, "once")
    patch = {"path": "AGENTS.md", "old_text": "old", "new_text": "new"}
    desk.calls(written(".envrc"), call("patch_file", patch))
    assert [question.why for question in desk.asked] == [
        ".envrc is run when its folder is entered",
        "AGENTS.md is taken by agents for instructions, or tells them what to run",
    ]
    assert (work / ".envrc").read_text() == "x"
    assert (work / "AGENTS.md").read_text() == "new"


def test_all_that_programs_of_the_account_obey_is_asked_for(work: Path) -> None:
    account = work.parent / "account"
    answers = Desk(account).calls(*(written(path) for path in IN_THE_HOME))
    assert [one for one in answers if "it is asked because" not in one] == []
    assert files(account) == []


def test_a_hidden_folder_in_which_one_works_is_a_folder_like_any_other(work: Path) -> None:
    work = work.parent / "account" / ".worktrees" / "one"
    work.mkdir(parents=True)
    (answer,) = Desk(work, **WRITES).calls(written("main.py"))
    assert "a new file" in answer


@pytest.mark.parametrize(
    "link",
    [
        lambda work, account: (work / "AGENTS.md").symlink_to("notes.md"),
        lambda work, account: os.link(work / "notes.md", work / "CLAUDE.md"),
        lambda work, account: (account / ".bashrc").symlink_to(work / "notes.md"),
        lambda work, account: (account / ".vim").symlink_to(work),
        lambda work, account: (work / ".vscode").symlink_to("."),
    ],
)
def test_a_file_that_is_named_otherwise_elsewhere(work: Path, link: Callable[[Path, Path], None]) -> None:
    (work / "notes.md").write_text("old")
    link(work, work.parent / "account")
    (answer,) = Desk(work).calls(written("notes.md"))
    assert "it is asked because notes.md (as " in answer
    assert (work / "notes.md").read_text() == "old"


@pytest.mark.parametrize("path", ["door", "house/tasks.json"])
def test_a_link_to_one_is_one(work: Path, path: str) -> None:
    (work / ".vscode").mkdir()
    (work / "door").symlink_to(".vscode/tasks.json")
    (work / "house").symlink_to(".vscode")
    (answer,) = Desk(work).calls(written(path))
    assert "it is asked because" in answer
    assert files(work) == []


def test_an_answer_for_good_is_for_this_file(work: Path) -> None:
    desk = Desk(work, "always")
    desk.calls(written(".envrc"), written(".envrc", "y"), written("sub/.envrc"))
    assert [question.arguments["path"] for question in desk.asked] == [".envrc", "sub/.envrc"]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        *(({"allow": [pattern]}, "no person is there") for pattern in ("write_file", "*", "write_file(**)", "write_file(.env*)")),
        ({"allow": ["write_file(.envrc)"]}, "a new file"), ({"policy": {"write_file": "allow"}}, "a new file"),
        ({"bypass": True}, "a new file"),
    ],
)  # fmt: skip
def test_a_rule_that_names_the_file_or_all_that_the_tool_does_allows_it(
    work: Path, rules: dict[str, Any], said: str
) -> None:
    (answer,) = Desk(work, settings={"approval": rules}).calls(written(".envrc"))
    assert said in answer


def test_every_tool_that_writes_to_paths_is_looked_at(work: Path) -> None:
    ran: list[Any] = []

    @tool(path_arguments=("target", "others"), effect="idempotent")
    def put(target: str, others: list[str]) -> str:
        ran.append((target, others))
        return "put"

    @tool(path_arguments=("target",), effect="pure")
    def look(target: str) -> str:
        return "seen"

    desk = Desk(work, "deny", toolsets=[], tools=[put, look])
    answers = desk.calls(
        call("put", {"target": "a", "others": ["b", "~/.bashrc"]}),
        call("put", {"target": "a", "others": []}),
        call("look", {"target": ".envrc"}),
    )
    assert [question.why for question in desk.asked] == ["~/.bashrc is run by a shell when it starts or ends"]
    assert (ran, answers[2]) == ([("a", [])], "seen")


NAMES = [name.replace("/**", "/any/thing").replace("*", "any") for row in ACTING_FILES for name in row.names]
FOLDERS = st.sampled_from(["", "a/", "A b/c/", "./", "x/../"])


@given(st.sampled_from(NAMES), st.lists(st.booleans(), min_size=60), FOLDERS)
@example(".envrc", [True] * 60, "")
def test_every_row_counts_in_any_case_and_any_folder(name: str, upper: list[bool], before: str) -> None:
    path = before + "".join(one.upper() if big else one for one, big in zip(name, upper, strict=False))
    assert acts_later(path, "/nowhere/work", "/nowhere/home")


@given(st.text(max_size=200))
@example("0\\:")  # a part that is a stream only
@example(".ssh\uff0f:\uff0fkeys")  # slashes as wide letters
@example("e\u00ad\u0301")  # an accent behind an invisible letter
def test_any_text_is_a_path_that_can_be_judged(path: str) -> None:
    assert isinstance(acts_later(path, "/nowhere/work", "/nowhere/home"), str)
    assert as_names(as_names(path)) == as_names(path)


def test_the_docs_say_which_files_they_are() -> None:
    """Each reason, and the first name of its row."""
    said = " ".join((ROOT / "docs" / "tools.md").read_text().split())
    for row in ACTING_FILES:
        assert row.reason in said, row
        assert f"`{row.names[0].removesuffix('/**')}" in said, row
