"""Files that act later: a program runs them or takes instructions from them unasked.

A tool needs explicit approval to write one of them, whatever it may do to other files. The list contains what
acts when a folder is entered or opened, when a shell, editor, agent or desktop starts, on a commit or push,
or when a package manager runs. It omits what a person runs as the project's own code, such as ``Makefile``,
``conftest.py`` and the scripts of ``package.json``: writing those is an agent's job."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class ActingFiles:
    """``names``: path suffixes in lower case; ``*`` matches within one name, ``/**`` everything in a
    folder. ``reason`` completes a sentence that begins with the path."""

    reason: str
    names: tuple[str, ...]

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile("|".join(f"(?:.*/)?{_pattern(name)}" for name in self.names), re.DOTALL)

    def has(self, path: str) -> bool:
        """Return whether ``path``, normalized by ``as_names``, is one of these."""
        return self._expression.fullmatch(path) is not None


class LastNames:
    """The last path components of some rows: a cheap filter before whole paths are compared."""

    def __init__(self, rows: Iterable[ActingFiles]) -> None:
        last = {name.removesuffix("/**").rpartition("/")[2] for row in rows for name in row.names}
        self._exact = frozenset(name for name in last if "*" not in name)
        self._wild = re.compile("|".join(sorted(map(_pattern, last - self._exact))) or "(?!)", re.DOTALL)

    def __contains__(self, name: str) -> bool:
        """``name``: one path component, normalized by ``plain_name``."""
        return name in self._exact or self._wild.fullmatch(name) is not None


def _pattern(name: str) -> str:
    return re.escape(name).replace(r"/\*\*", "(?:/.*)?").replace(r"\*", "[^/]*")


ACTING_FILES: tuple[ActingFiles, ...] = (
    ActingFiles("is run by a shell when it starts or ends", (
        ".bashrc", ".bashrc.d/**", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases",
        ".profile", ".zshrc", ".zshrc.d/**", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".oh-my-zsh/**",
        ".kshrc", ".mkshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".inputrc", ".xonshrc",
        ".config/fish/**", ".config/nushell/**", ".config/xonsh/**", ".config/powershell/**",
        "*profile.ps1", ".pam_environment", ".config/environment.d/**", ".hushlogin",
    )),
    ActingFiles("is run by the system or the desktop by itself", (
        ".config/autostart/**", ".config/autostart-scripts/**", ".config/systemd/**",
        ".local/share/systemd/**", ".local/share/dbus-1/**", ".config/plasma-workspace/**",
        "library/launchagents/**", "library/launchdaemons/**", ".xinitrc", ".xsession", ".xsessionrc",
        ".xprofile", ".xserverrc", ".config/i3/**", ".config/sway/**", ".config/hypr/**",
        "crontab", "crontabs/**", "cron.d/**", "cron.hourly/**", "cron.daily/**", "cron.weekly/**",
        "cron.monthly/**", ".forward", ".procmailrc", ".mailcap",
    )),
    ActingFiles("decides who may log in, or runs at a login", (
        ".ssh/**", ".shosts", ".rhosts", ".k5login",
    )),
    ActingFiles("names commands that Git or Mercurial runs", (
        ".gitconfig", ".gitconfig.*", ".config/git/**", ".githooks/**", ".husky/**", ".hgrc", ".hg/**",
        ".pre-commit-config.yaml", ".pre-commit-hooks.yaml", ".lintstagedrc*", "lefthook*.yml",
        "lefthook*.yaml", ".lefthook*.yml", ".lefthook*.yaml", ".lefthook/**", ".overcommit.yml",
    )),
    ActingFiles("is taken by agents for instructions, or tells them what to run", (
        "fsm_agent.md", "agents.md", "agents.override.md", "agent.md", "claude.md", "claude.local.md",
        "gemini.md", "warp.md", ".hermes.md", "soul.md", "skill.md", ".agents/**", ".claude/skills/**",
        ".claude/commands/**", ".claude/agents/**", ".claude/hooks/**", ".claude/rules/**",
        ".claude/settings*.json", ".codex/**", ".gemini/**", ".cursorrules", ".cursor/**", ".windsurfrules",
        ".windsurf/**", ".clinerules/**", ".roorules*", ".roo/**", ".continue/**", ".junie/**", ".kiro/**",
        ".amazonq/**", ".augment/**", ".goosehints", ".rules", ".aider.conf.yml", ".opencode/**",
        "opencode.json*", ".mcp.json", "mcp.json", "claude_desktop_config.json",
        ".github/copilot-instructions.md", ".github/instructions/**", ".github/prompts/**",
        ".github/agents/**", ".github/chatmodes/**",
    )),
    ActingFiles("is run when its folder is entered", (
        ".envrc", ".direnvrc", ".config/direnv/**", "mise*.toml", ".mise*.toml", ".mise/**",
        ".config/mise/**", ".rvmrc", ".autoenv*",
    )),
    ActingFiles("is run or obeyed by an editor that opens the folder", (
        ".vscode/**", "*.code-workspace", ".idea/**", ".fleet/**", ".zed/**", ".theia/**", ".nova/**",
        ".devcontainer/**", ".devcontainer.json", "*.sublime-project", ".vimrc", ".gvimrc", ".exrc",
        ".nvimrc", ".nvim.lua", ".lvimrc", ".vim/**", ".config/nvim/**", ".config/vim/**", ".emacs",
        ".emacs.d/**", ".config/emacs/**", ".spacemacs", ".dir-locals*.el", ".nanorc",
    )),
    ActingFiles("is run by a build server", (
        ".github/workflows/**", ".github/actions/**", ".gitea/**", ".forgejo/**", ".gitlab-ci.yml",
        ".gitlab/**", ".circleci/**", ".travis.yml", ".appveyor.yml", "appveyor.yml", "azure-pipelines*.yml",
        ".azure-pipelines/**", "jenkinsfile*", "bitbucket-pipelines.yml", ".drone.yml", ".woodpecker*",
        ".woodpecker/**", ".buildkite/**", ".cirrus.yml", ".ci/**", ".teamcity/**", ".builds/**",
        ".build.yml", ".semaphore/**", "cloudbuild.yaml", "buildspec.yml",
    )),
    ActingFiles("is run by an interpreter or a debugger when it starts", (
        "sitecustomize.py", "usercustomize.py", "*.pth", "pyvenv.cfg", ".pythonrc*", ".pythonstartup",
        ".pdbrc*", ".ipython/**", ".jupyter/**", ".gdbinit", ".config/gdb/**", ".lldbinit", ".rprofile",
        ".renviron", ".irbrc", ".pryrc", ".psqlrc", ".sqliterc", ".ghci", ".julia/config/**", ".perldb",
    )),
    ActingFiles("tells a package manager where to fetch code, or what to run", (
        ".npmrc", ".yarnrc*", ".yarn/plugins/**", ".yarn/releases/**", "*pnpmfile.cjs", "bunfig.toml",
        ".pypirc", "pip.conf", "pip.ini", "uv.toml", ".config/uv/**", ".condarc", "condarc", ".gemrc",
        ".bundle/**", ".cargo/**", ".m2/**", ".mvn/**", ".gradle/**", ".nuget/**", "nuget.config",
        ".composer/**", ".sbt/**", ".terraformrc", ".wgetrc", ".curlrc",
    )),
    ActingFiles("holds keys, or names commands that fetch them", (
        ".netrc", "_netrc", ".git-credentials", ".docker/**", ".kube/**", ".aws/**", ".azure/**",
        ".config/gcloud/**", ".config/gh/**", ".gnupg/**", ".my.cnf", ".pgpass", ".config/containers/**",
    )),
    ActingFiles("is run in a terminal when it opens", (
        ".tmux.conf", ".config/tmux/**", ".screenrc", ".wezterm.lua", ".config/wezterm/**",
        ".config/kitty/**", ".config/alacritty/**",
    )),
    ActingFiles("is found before other commands of the same name", (".local/bin/**",)),
)  # fmt: skip
"""Grouped by effect. ``.git`` is not listed because no tool of this package writes into it."""
OF_THE_ACCOUNT = "is in a hidden folder or file of your account, where programs keep what they obey"


def acts_later(path: str, workdir: str, home: str | None = None) -> str:
    """Return why writing ``path`` needs explicit approval, as one sentence; empty when it does not.

    Checks every name of the file: the one given, the real one, and those of links in the file's folder, in
    ``workdir`` and in ``home`` (by default the user's)."""
    home = os.path.expanduser("~") if home is None else home
    names = list(dict.fromkeys(_names_of(path, workdir, home)))
    for one in names:
        reason = acting_reason(as_names(one)) or (OF_THE_ACCOUNT if _hidden_in(one, home, workdir) else "")
        if reason:
            return f"{path} {reason}" if one == names[0] else f"{path} (as {one}) {reason}"
    return ""


def acting_reason(plain: str) -> str:
    """Return how a file acts later, given its path normalized by ``as_names``; empty if it does not."""
    return next((row.reason for row in ACTING_FILES if row.has(plain)), "")


def plain_name(part: str) -> str:
    """Normalize a name as some file systems do: drop case, invisible characters, streams, and trailing dots
    and spaces."""
    return _plain(part).split(":")[0].rstrip(" .")


def as_names(path: str) -> str:
    """Normalize each part of a path with ``plain_name``. Letters are normalized first, because some become
    slashes."""
    return "/".join(name for part in re.split(r"[/\\]+", _plain(path)) if (name := plain_name(part)))


def _plain(text: str) -> str:
    """Return the case-folded compatibility form (NFKC_Casefold) without invisible characters."""
    if text.isascii():
        return text.lower()
    seen = "".join(character for character in text if unicodedata.category(character) != "Cf")
    for form in ("NFD", "NFKC"):
        seen = unicodedata.normalize(form, seen).casefold()
    return unicodedata.normalize("NFKC", seen)


def _names_of(path: str, workdir: str, home: str) -> Iterator[str]:
    if "\0" in path:  # no file has such a name
        return
    given = os.path.normpath(os.path.join(workdir, os.path.expanduser(path)))
    real = os.path.realpath(os.path.join(workdir, os.path.expanduser(path)))
    yield given
    yield real
    for folder in dict.fromkeys((os.path.dirname(real), workdir, home, os.path.join(home, ".config"))):
        yield from _links_in(folder, real)


def _links_in(folder: str, real: str) -> Iterator[str]:
    """Yield names of ``real`` through links in a folder, to it or to one of its parents."""
    try:
        number = os.stat(real).st_ino if os.path.isfile(real) and os.stat(real).st_nlink > 1 else None
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    if real == target or real.startswith(f"{target}/"):
                        yield entry.path + real[len(target) :]
                elif number is not None and entry.inode() == number and os.path.samefile(entry.path, real):
                    yield entry.path
    except OSError:  # missing or unreadable
        return


def _hidden_in(path: str, home: str, workdir: str) -> bool:
    """Return whether the path is in a hidden folder or file of the home directory, outside the working
    directory."""
    base = Path(os.path.realpath(home))
    try:
        first = Path(path).relative_to(base).parts[:1]
    except ValueError:
        return False
    hidden = bool(first) and first[0].startswith(".")
    return hidden and not Path(os.path.realpath(workdir)).is_relative_to(base / first[0])
