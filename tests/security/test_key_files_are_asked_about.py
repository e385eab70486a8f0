"""Threat: keys of other services go to the provider of a model, because a command that only reads shows them; and
a path that leads out, judged by what is there when it is asked about."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fsm_agent.approvals.rules import Asked, Pattern, allows, why_not_read_only

READ_ONLY = [Pattern.of("terminal(@read-only)")]
TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture(autouse=True)
def programs_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def unasked(line: str, work: Path) -> bool:
    return allows(READ_ONLY, Asked.of("terminal", {"command": line}, (), str(work)), str(work))


KEY_FILES = (
    ".env", ".env.local", "app/.env", "prod.env", ".envrc", ".netrc", ".pypirc", ".git-credentials", "id_rsa", "x/id_ed25519",
    ".ssh/config", ".aws/credentials", "credentials.json", "secrets.yaml", "a.p12", ".kube/config", ".docker/config.json",
    ".ENV", ".Env ", "terraform.tfvars", ".pgpass", "home/mcp-logins/s-0123456789abcdef.json",
)  # fmt: skip


def test_a_file_that_holds_keys_is_not_shown_unasked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name in KEY_FILES:
        for line in ("cat '{}'", "head -3 './{}'", "cat < '{}'", "grep x 'a/../{}'", "git show 'HEAD:{}'"):
            assert not unasked(line.format(name), tmp_path), line.format(name)


@pytest.mark.parametrize(
    ("name", "text", "free"),
    [
        (".npmrc", "save-exact=true\n", True), (".npmrc", "//registry.npmjs.org/:_authToken=abcdef0123\n", False),
        ("a.pem", "-----BEGIN CERTIFICATE-----\n", True), ("a.pem", "-----BEGIN RSA PRIVATE KEY-----\n", False),
        (".git/config", '[remote "o"]\n\turl = https://example.org/x\n', True),
        (".git/config", f'[remote "o"]\n\turl = https://me:{TOKEN}@example.org/x\n', False),
        (".git/config", '[http]\n\textraheader = "AUTHORIZATION: basic bWU6aHVudGVyMg=="\n', False),
        ("env.py", "X = 1\n", True), (".env.example", "KEY=\n", True), ("id_rsa.pub", "ssh-rsa AAAA\n", True), ("keys.md", "", True),
    ],
)  # fmt: skip
def test_what_may_hold_a_key_is_looked_into(tmp_path: Path, name: str, text: str, free: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert unasked(f"cat {name}", tmp_path) is free


def test_links_and_wildcards_lead_to_them(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=x\n")
    (tmp_path / "plain.txt").symlink_to(".env")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "id_rsa").write_text("x")
    (tmp_path / "b.txt").write_text("x")
    for line in ("cat plain.txt", "cat .e*", "cat ./.*", "cat d/*", "cat */id*", "cat ./p*", "cat *"):
        assert not unasked(line, tmp_path), line
    for line in ("cat b*", "ls -la .env", "ls d/*", "stat .env", "find . -name .env", "echo .env"):
        assert unasked(line, tmp_path), line


def test_a_search_through_a_folder_that_has_one_is_asked_about(tmp_path: Path) -> None:
    for folder in ("src", "conf"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x")
    (tmp_path / "conf" / ".env").write_text("KEY=x\n")
    for line in (
        "grep -rn KEY .",
        "grep -rn KEY",
        "grep -R KEY conf src",
        "grep --recursive KEY conf",
        "diff -r conf src",
    ):
        assert not unasked(line, tmp_path), line
    for line in ("grep -rn KEY src", "grep KEY src/a.py", "diff conf/a.py src/a.py"):
        assert unasked(line, tmp_path), line


def test_settings_with_a_key_in_them_are_not_listed_unasked(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert unasked("git remote -v", tmp_path)
    with (tmp_path / ".git" / "config").open("a") as file:
        file.write(f'[remote "o"]\n\turl = https://me:{TOKEN}@example.org/x\n')
    assert not unasked("git remote -v", tmp_path)
    assert not unasked("git config remote.o.url", tmp_path)
    assert unasked("git status", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "cat ~/x", "cat /nowhere/x", "cat ../x", "cat sub/../../x", "ls /nowhere", "grep x -f/nowhere", "head < ../x", "cat ~daemon/x",
        "sort --files=/nowhere", "awk '{print}' /nowhere", "sed -n p ../x", "jq . /nowhere", "ls ~/.*", "cat link/x", "echo /nowhere/*",
    ],
)  # fmt: skip
def test_a_path_that_leads_out_is_judged_by_its_name(tmp_path: Path, line: str) -> None:
    """It may be there when the command runs."""
    (tmp_path / "link").symlink_to("/nowhere")
    assert not unasked(line, tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "cat absent", "cat sub/../x", "awk '/x/ {print}' a", "sed -n '/x/p' a", "jq '.. | .x' a", "echo /x", "printf '/%s' x",
        "ls ./sub//x", "cat < absent", "diff a b",
    ],
)  # fmt: skip
def test_paths_in_the_folder_and_other_words_run_unasked(tmp_path: Path, line: str) -> None:
    assert unasked(line, tmp_path)


def test_the_question_names_the_file_that_holds_keys(tmp_path: Path) -> None:
    call = Asked.of("terminal", {"command": "ls && cat .env"}, (), str(tmp_path))
    assert why_not_read_only(call, str(tmp_path)) == ".env holds keys"
