"""Folders that want to be run by being looked at, and the commands that look.

Every trap names a program that leaves a file with the trap's name. ``HostileFolders`` puts some of them, by
chance, into a folder; the same seed makes the same folder."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

READERS = tuple(Path(__file__).with_name("readers.txt").read_text("utf-8").splitlines())
"""One or more lines for every program of ``programs.txt`` that reads, and for ``--version`` of others."""
GIT_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b.c"}


@dataclass
class Folder:
    """``work`` is where commands run, ``ran`` gets a file for each trap that ran. ``environ`` is theirs."""

    root: Path
    work: Path
    ran: Path
    environ: dict[str, str]

    def trap(self, name: str) -> str:
        """A program that leaves a file of this name, and behaves like ``cat``."""
        path = self.root / "traps" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'#!/bin/sh\n: > {self.ran}/{name}\n[ $# -eq 0 ] || /bin/cat "$1" 2>/dev/null\nexit 0\n'
        )
        path.chmod(0o755)
        return str(path)

    def git(self, *words: str, at: Path | None = None) -> None:
        """Run Git as the maker of the folder would."""
        plain = {"PATH": "/usr/bin:/bin", "HOME": str(self.root), **GIT_ENVIRONMENT}
        named = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
        subprocess.run(
            ["git", *named, *words], cwd=at or self.work, env=plain, check=True, capture_output=True
        )

    def settings(self, text: str, at: Path | None = None) -> None:
        """Add to the settings of the repository."""
        with (at or self.work / ".git" / "config").open("a") as file:
            file.write(text)

    def write(self, name: str, text: str, run: bool = False) -> None:
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if run:
            path.chmod(0o755)

    def read_with(self, lines: list[str]) -> set[str]:
        """Run some lines, one after the other; the names of the traps that ran."""
        if not lines:  # no shell is started, which would read files of its own
            return set()
        script = "\n".join(f"( {line}\n) </dev/null >/dev/null 2>&1" for line in lines)
        subprocess.run(
            ["/bin/bash", "-c", script], cwd=self.work, env=self.environ, check=False, timeout=120,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return {path.name for path in self.ran.iterdir()}


Trap = Callable[[Folder], None]


def _driver(kind: str, keys: str) -> Trap:
    def make(folder: Folder) -> None:
        rows = "".join(f"\t{key} = {folder.trap(f'{kind}-{key}')}\n" for key in keys.split())
        folder.settings(f'[{kind} "x"]\n{rows}')
        where = (".gitattributes", ".git/info/attributes", "sub/.gitattributes")[len(keys) % 3]
        folder.write(where, f"* {kind}=x\n")
        folder.write(".gitattributes", f"* {kind}=x\n")

    return make


def _setting(section: str, key: str) -> Trap:
    def make(folder: Folder) -> None:
        name = f"{section.split()[0]}-{key}"
        folder.settings(f"[{section}]\n\t{key} = {folder.trap(name)}\n")

    return make


def _hook(folder: Folder) -> None:
    hooks = folder.work / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "post-index-change").symlink_to(folder.trap("hook"))


def _hooks_path(folder: Folder) -> None:
    folder.write("h/post-index-change", Path(folder.trap("hooks-path")).read_text(), run=True)
    folder.settings("[core]\n\thooksPath = h\n")


def _included(folder: Folder) -> None:
    folder.write("more", f"[core]\n\tfsmonitor = {folder.trap('included')}\n")
    folder.settings("[include]\n\tpath = ../more\n")


def _included_if(folder: Folder) -> None:
    folder.write("more-if", f"[diff]\n\texternal = {folder.trap('included-if')}\n")
    folder.settings('[includeIf "gitdir:**"]\n\tpath = ../more-if\n')


def _worktree_settings(folder: Folder) -> None:
    folder.settings("[extensions]\n\tworktreeConfig = true\n")
    (folder.work / ".git" / "config.worktree").write_text(
        f"[core]\n\tfsmonitor = {folder.trap('worktree-config')}\n"
    )


def _four_files(folder: Folder) -> None:
    """What a model can write itself."""
    shutil.rmtree(folder.work / ".git", ignore_errors=True)
    folder.write("HEAD", "ref: refs/heads/main\n")
    folder.write("objects/x", "")
    folder.write("refs/x", "")
    folder.write(
        "config",
        f"[core]\n\trepositoryformatversion = 0\n\tfsmonitor = {folder.trap('four-files')}\n\tworktree = .\n",
    )


def _files_of_others(folder: Folder) -> None:
    """Settings that let Git read another folder; that it is read is seen by a file that is looked at."""
    shutil.rmtree(folder.work / ".git", ignore_errors=True)
    for name in ("objects/x", "refs/x"):
        folder.write(name, "")
    folder.write("HEAD", "ref: refs/heads/main\n")
    folder.write("config", "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n")


def _git_file(folder: Folder) -> None:
    (folder.work / ".git").rename(folder.work / "elsewhere")
    (folder.work / ".git").write_text("gitdir: elsewhere\n")
    folder.settings(
        f"[core]\n\tfsmonitor = {folder.trap('git-file')}\n", folder.work / "elsewhere" / "config"
    )


def _submodule(folder: Folder) -> None:
    inner = folder.work / "inner"
    inner.mkdir(exist_ok=True)
    folder.git("init", "-q", at=inner)
    (inner / "f").write_text("one\n")
    folder.git("add", ".", at=inner)
    folder.git("commit", "-qm", "m", at=inner)
    folder.git("add", "inner")
    folder.settings(f"[core]\n\tfsmonitor = {folder.trap('submodule')}\n", inner / ".git" / "config")
    (inner / "f").write_text("two\n")


def _promisor(folder: Folder) -> None:
    folder.settings(
        f'[extensions]\n\tpartialClone = o\n[remote "o"]\n\tpromisor = true\n\turl = "ext::{folder.trap("promisor")} %S"\n'
        "[protocol]\n\tallow = always\n"
    )
    objects = folder.work / ".git" / "objects"
    for one in [path for path in objects.glob("??/*") if path.is_file()][:4]:
        one.unlink()


def _later_version(folder: Folder) -> None:
    folder.settings(
        f"[core]\n\trepositoryformatversion = 999\n\tfsmonitor = {folder.trap('later-version')}\n"
    )


def _unreadable(folder: Folder) -> None:
    folder.settings(f"[core]\n\tfsmonitor = {folder.trap('unreadable')}\n[broken\n")


def _named_like_a_reader(folder: Folder) -> None:
    for name in ("ls", "git", "cat", "python3", "node", "file"):
        folder.write(f"bin/{name}", Path(folder.trap("named-like-one")).read_text(), run=True)
    folder.environ["PATH"] = f"{folder.work}/bin:{folder.environ['PATH']}"


def _here_in_path(folder: Folder) -> None:
    folder.write("wc", Path(folder.trap("here-in-path")).read_text(), run=True)
    folder.environ["PATH"] = f":{folder.environ['PATH']}"


def _python_path(folder: Folder) -> None:
    folder.write("sitecustomize.py", f"open({str(folder.ran / 'python-path')!r}, 'w')\n")
    folder.environ["PYTHONPATH"] = ":/nowhere"


def _bash_env(folder: Folder) -> None:
    folder.write("env.sh", f": > {folder.ran}/bash-env\n")
    folder.environ["BASH_ENV"] = "env.sh"


def _version_files(folder: Folder) -> None:
    """Those of version managers and package managers."""
    trap = folder.trap("tool-chain")
    for program in ("rustc", "cargo", "python", "python3", "node"):
        folder.write(f"chain/bin/{program}", Path(trap).read_text(), run=True)
    script = f"require('fs').writeFileSync({str(folder.ran / 'javascript')!r}, '')\n"
    folder.write("y.cjs", script)
    texts = {
        "rust-toolchain.toml": '[toolchain]\npath = "chain"\n', "rust-toolchain": f"{folder.work}/chain\n",
        ".cargo/config.toml": f'[build]\nrustc = "{trap}"\nrustc-wrapper = "{trap}"\n', ".yarnrc.yml": "yarnPath: y.cjs\n",
        ".yarnrc": 'yarn-path "y.cjs"\n', ".npmrc": "node-options=--require ./y.cjs\nscript-shell=./y.cjs\n",
        "package.json": '{"packageManager": "yarn@file:./y.cjs", "scripts": {"prepare": "./y.cjs"}}', ".nvmrc": "chain\n",
        ".python-version": f"../../..{folder.work}/chain\n", ".node-version": "chain\n", ".ruby-version": "chain\n",
        ".tool-versions": f"python path:{folder.work}/chain\nnodejs path:{folder.work}/chain\n",
        "mise.toml": f"[tools]\npython = 'path:{folder.work}/chain'\n", ".pnpmfile.cjs": script,
    }  # fmt: skip
    for name, text in texts.items():
        folder.write(name, text)


def _start_files(folder: Folder) -> None:
    """Those that interpreters and tools might read where they start."""
    trap = folder.trap("start-file")
    python = f"open({str(folder.ran / 'python-file')!r}, 'w')\n"
    for name in (
        "sitecustomize.py",
        "usercustomize.py",
        "conftest.py",
        "json.py",
        "site.py",
        "pip.py",
        "pip/__init__.py",
    ):
        folder.write(name, python)
    texts = {
        "Makefile": f"X := $(shell {trap})\nall:\n", "GNUmakefile": f"X := $(shell {trap})\n", "specs": f"*cc1:\n{trap}\n",
        ".hotspotrc": f"OnError={trap}\n", ".hotspot_compiler": "quiet\n", ".sqliterc": f".shell {trap}\n", ".curlrc": "output = owned\n",
        ".perldb": f"system('{trap}');\n", "php.ini": f"auto_prepend_file={trap}\n", ".ripgreprc": f"--pre={trap}\n", ".jq": "def x: 1;\n",
        ".bashrc": f"{trap}\n", ".profile": f"{trap}\n", ".inputrc": "x\n", ".magic": "0 string x\n", "magic": "0 string x\n", ".lesskey": "x\n",
        "CMakePresets.json": "{}", "CMakeLists.txt": f"execute_process(COMMAND {trap})\n", ".envrc": f"{trap}\n", ".mypy.ini": "[mypy]\nplugins = conftest.py\n",
        "pyproject.toml": '[tool.mypy]\nplugins = "conftest"\n[tool.pytest.ini_options]\naddopts = "-p conftest"\npythonpath = "."\n',
        "ruff.toml": "x\n", "uv.toml": "x\n", "pip.conf": "[global]\n", "setup.py": python, "setup.cfg": "[mypy]\nplugins = conftest\n",
        ".docker/config.json": f'{{"credHelpers": {{"x": "{trap}"}}}}', ".lfsconfig": f"[lfs]\n\tcustomtransfer.x.path = {trap}\n",
    }  # fmt: skip
    for name, text in texts.items():
        folder.write(name, text)


def _own_driver(folder: Folder) -> None:
    """One of the person's, which the folder chooses, and which runs a module of the folder."""
    (Path(folder.environ["HOME"]) / ".gitconfig").write_text('[diff "nb"]\n\ttextconv = python3 -m nb\n')
    folder.write("nb.py", f"open({str(folder.ran / 'own-driver')!r}, 'w')\n")
    folder.write(".gitattributes", "* diff=nb\n")


MONITOR = _setting("core", "fsmonitor")
TRAPS: dict[str, Trap] = {
    "core-fsmonitor": MONITOR, "diff-external": _setting("diff", "external"), "core-pager": _setting("core", "pager"),
    "diff-textconv": _driver("diff", "textconv"), "diff-command": _driver("diff", "command"), "filter-clean": _driver("filter", "clean"),
    "filter-process": _driver("filter", "process smudge"), "core-sshCommand": _setting("core", "sshCommand"),
    "gpg-program": _setting("gpg", "program"), "alias-status": _setting("alias", "status"), "core-gitProxy": _setting("core", "gitProxy"),
    "hook-command": _setting('hook "x"', "command"), "pager-log": _setting("pager", "log"), "core-editor": _setting("core", "editor"),
    "credential-helper": _setting("credential", "helper"), "hook": _hook, "hooks-path": _hooks_path, "included": _included,
    "included-if": _included_if, "worktree-config": _worktree_settings, "four-files": _four_files, "git-file": _git_file, "files-of-others": _files_of_others,
    "submodule": _submodule, "promisor": _promisor, "later-version": _later_version, "unreadable": _unreadable,
    "named-like-one": _named_like_a_reader, "here-in-path": _here_in_path, "python-path": _python_path, "bash-env": _bash_env,
    "tool-chain": _version_files, "start-file": _start_files, "own-driver": _own_driver,
}  # fmt: skip
"""By the name of the file that most of them leave."""
LAST = frozenset(("four-files", "git-file", "files-of-others"))
"""They move the repository, so they come last; a submodule is made while Git still works."""


def plain(root: Path) -> Folder:
    """A folder in which nothing is wrong: a repository with a change and files of all kinds."""
    folder = Folder(root, root / "work", root / "ran", {})
    for made in (folder.work, folder.ran, root / "home"):
        made.mkdir(parents=True)
    folder.environ = {
        "PATH": os.environ["PATH"], "HOME": str(root / "home"), "LC_ALL": "C.UTF-8", **GIT_ENVIRONMENT,
    }  # fmt: skip
    folder.git("init", "-q")
    for name, text in {"a.txt": "one\ntwo\n", "b.txt": "one\n", "p.json": "{}", "sub/c.txt": "one\n"}.items():
        folder.write(name, text)
    folder.git("add", ".")
    folder.git("commit", "-qm", "m")
    folder.write("a.txt", "one\nthree\n")
    os.utime(folder.work / "b.txt", (1, 1))  # so that Git looks at it again, and writes its index
    return folder


def hostile(root: Path, seed: int) -> tuple[Folder, list[str]]:
    """A folder with one to four traps, and their names; the first traps come alone."""
    folder, chance = plain(root), random.Random(seed)
    every = list(TRAPS)
    chosen = [every[seed]] if seed < len(every) else chance.sample(every, chance.randint(2, 4))
    for name in sorted(chosen, key=lambda one: (one in LAST, one != "submodule", every.index(one))):
        if not (name in LAST and not (folder.work / ".git" / "config").exists()):
            TRAPS[name](folder)
    for path in folder.ran.iterdir():  # what the making of it ran
        path.unlink()
    return folder, chosen
