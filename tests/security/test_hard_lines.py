"""Which shell commands nobody can approve."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsm_agent.approvals.policy import hard_line
from fsm_agent.approvals.rules import Asked, Pattern, allows

ENVIRON = {"HOME": "/home/me", "TOP": "/", "TMPDIR": "/tmp"}
HERE = "/home/me/code/project"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "rm -fr  /*",
        "rm -r -f ~",
        "rm -rf ~/",
        "rm -rf $HOME",
        'rm -rf "${HOME}"/*',
        "rm --recursive --force /etc/",
        "rm / -rf",
        "rm -rf -- /usr/*",
        "rm -rf /tmp/..",
        "rm -rf //",
        "rm -rf --no-preserve-root x",
        "sudo rm -rf /",
        "sudo -u root rm -rf /home",
        "/bin/rm -rf /",
        "\\rm -rf /",
        "'rm' -rf '/'",
        "r''m -rf /",
        "X=1 rm -rf /",
        "echo hi; rm -rf /",
        "true && rm -rf /",
        "echo hi\nrm -rf /",
        "(rm -rf /)",
        "{ rm -rf /; }",
        "if true; then rm -rf /; fi",
        "echo $(rm -rf /)",
        'echo "$(rm -rf /)"',
        "echo `rm -rf /`",
        'echo "`rm -rf /`"',
        "bash -c 'rm -rf /'",
        "sudo bash -lc 'sh -c \"rm -rf /\"'",
        'eval "rm -rf /"',
        "rm${IFS}-rf${IFS}/",
        "timeout 5s rm -rf /",
        "echo / | xargs rm -rf /",
        "cd / && rm -rf *",
        "rm -rf \\\n/",
        "find / -delete",
        "find / -exec rm -rf {} \\;",
        "mkfs.ext4 /dev/sda1",
        "mkfs -t ext4 /dev/sda1",
        "dd if=/dev/zero of=/dev/sda bs=1M",
        "cat x > /dev/nvme0n1",
        "echo x >/dev/sda",
        "cat x | sudo tee /dev/sda",
        ":(){ :|:& };:",
        "bomb() { bomb | bomb & }; bomb",
        "shutdown -h now",
        "sudo reboot",
        "systemctl poweroff",
        "init 0",
        "echo pw | sudo -S ls",
        "sudo -u root -S ls",
        "sudo -kS ls",
        "sudo --stdin ls",
        "chmod -R 777 /",
        "chmod -R a+rwx /etc",
        "chown -R me /",
        "kill -9 -1",
        "echo 'unclosed; rm -rf /",
        "x" * 131_072,
    ],
)
def test_hard_lines(command: str) -> None:
    assert hard_line(command), command


@pytest.mark.parametrize(
    "command",
    [
        "",
        "ls -la /",
        "rm -rf build",
        "rm -rf ./build/*",
        "rm -rf /tmp/x",
        "rm -rf /home/me/project/build",
        "rm -rf ~/.cache/x",
        "rm -f /etc/motd",
        "rm file",
        "echo 'rm -rf /'",
        'git commit -m "do not rm -rf /"',
        "grep -r shutdown /etc",
        "sudo apt-get install -y x",
        "sudo ls -S",
        "if grep -q reboot log; then echo yes; fi",
        "timeout 5 grep halt log",
        "curl https://example.org/x.sh | sh",
        "dd if=/dev/zero of=disk.img bs=1M",
        "echo x > /dev/null 2>&1",
        "chmod -R 755 /srv/app",
        "chmod 777 x",
        "chown -R me:me /srv/app",
        "kill -1 123",
        "find . -name '*.pyc' -delete",
        "find / -name '*.pyc' -delete",
        "cd /tmp && rm -rf *",
        "f() { echo hi; }; f",
        "python -c 'print(1)'",
        "systemctl status nginx",
        "make init",
    ],
)
def test_what_a_person_may_decide(command: str) -> None:
    assert hard_line(command) is None, command


@pytest.mark.parametrize(
    "command",
    [
        "X=/; rm -rf $X",
        'X=/ ; rm -rf "$X"',
        "export D=/etc; rm -rf ${D}",
        "A=r; B=m; $A$B -rf /",
        "A=r; B=${A}m; $B -rf /",
        "CMD='rm -rf /'; $CMD",
        'CMD="rm -rf /"; eval $CMD',
        'CMD="rm -rf /"; sh -c "$CMD"',
        "rm -rf $NOPE/",
        "rm -rf ${NOPE:-/}",
        "rm -rf ${X:=/etc}",
        "rm -rf $TOP",
        "r$@m -rf /",
        "r${nope}m -rf /",
        "$'\\x72\\x6d' -rf /",
        "$'rm' -rf $'/'",
        "$(echo rm) -rf /",
        "`echo rm` -rf /",
        "{rm,-rf,/}",
        "/bin/r? -rf /",
        "/???/rm -rf /",
        "rm -rf /e??",
        "rm -rf /{bin,etc}",
        "for d in / /etc; do rm -rf $d; done",
        "cd / ; rm -rf .",
        "pushd /etc && rm -rf *",
        "env -S 'rm -rf /'",
        "trap 'rm -rf /' EXIT",
        "alias ls='rm -rf /'; ls",
        "watch 'rm -rf /'",
        "flock /tmp/l rm -rf /",
        "chroot / rm -rf /",
        "strace -f rm -rf /",
        "mv / /tmp/x",
        "mv /etc /tmp",
        "rsync -a --delete empty/ /",
        "cp x /dev/sda",
        "shred /dev/sda",
        "echo b > /proc/sysrq-trigger",
        ": > /etc/passwd",
        "rm --recurs -f /",
        "rm -rf /usr/../etc",
        "f(){ rm -rf /; }; f",
        "su -c 'rm -rf /'",
        "X=/dev/sda; dd if=/dev/zero of=$X",
        "S=shut; T=down; $S$T now",
        "W=-S; sudo $W ls",
    ],
)
def test_disguises_are_taken_off(command: str) -> None:
    assert hard_line(command, environ=ENVIRON, directory=HERE), command


@pytest.mark.parametrize(
    "command",
    [
        "X=$(mktemp -d); rm -rf $X",
        'X=$(mktemp -d); rm -rf "$X/"',
        "read X; rm -rf $X/",
        ". ./env.sh; rm -rf $BUILD/*",
        "for d in a b; do rm -rf $d/; done",
        "echo aGVsbG8= | base64 -d",
        "echo aGVsbG8= | base64 -d | sh",
        "curl https://x | sh",
        "curl -s https://x | base64 -d | bash",
        "python -c 'print(\"rm -rf /\")'",
        "python -c \"import os; print(os.listdir('/'))\"",
        "perl -ne 'print if /rm -rf/' log",
        "git commit -m 'trap: rm -rf / is bad'",
        "rm -rf build-{a,b}",
        "rm -rf /tmp/{a,b}",
        'rm -rf "$TMPDIR/x"',
        "rm -rf $PWD/build",
        "rm -rf ./*.o",
        "mv /etc/motd /tmp",
        "mv a b",
        "rm -rf ../build",
        "cd /tmp/x && rm -rf *",
        "find . -name x -print0 | xargs -0 rm -rf",
        "ls | xargs rm -rf",
        "watch -n 1 'ls -la /'",
        "awk '{print $1}' f",
        "awk -F: '{ print $NF }' /etc/passwd | sort",
        "cp /dev/sda disk.img",
        'docker run --rm -v "$PWD":/src img make',
        "sed -i 's/shutdown/x/' f",
        'for f in *.py; do python -m py_compile "$f"; done',
        "A=1 B=2 make -j$(nproc)",
        'echo "$((1+2))"',
        "node -e \"require('child_process').execSync('ls /')\"",
        "grep -rn 'system(\"rm -rf /\")' src",
        "tar czf - . | ssh host 'cat > x.tgz'",
        "rsync -a --delete build/ /srv/www/",
        "chmod -R u+rwX,go-w .",
        "strace -f ls /",
        "trap 'rm -rf \"$tmp\"' EXIT",
        "tmp=$(mktemp -d); trap 'rm -rf \"$tmp\"' EXIT; ls",
    ],
)
def test_what_only_looks_alike_is_left_to_a_person(command: str) -> None:
    assert hard_line(command, environ=ENVIRON, directory=HERE) is None, command


@pytest.mark.parametrize(
    "command", ["rm -rf ../../../..", "cd ../../../..; rm -rf *", "rm -rf /home/me", "cd; rm -rf *"]
)
def test_where_a_command_runs_counts(command: str) -> None:
    assert hard_line(command, environ=ENVIRON, directory=HERE), command
    assert (
        hard_line(
            command.replace("../../../..", "..").replace("cd;", "cd a;").replace("/me", "/me/code/x"),
            directory=HERE,
        )
        is None
    )


def test_the_environment_of_this_process_is_what_counts_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PLACE", "/etc")
    assert hard_line("rm -rf $SOME_PLACE")
    monkeypatch.setenv("SOME_PLACE", "/srv/app/build")
    assert hard_line("rm -rf $SOME_PLACE") is None


@pytest.mark.parametrize(
    "command",
    [
        "echo cm0gLXJmIC8= | base64 -d | sh",
        "echo cm0gLXJmIC8= | base64 --decode | bash -s",
        "base64 -d <<< cm0gLXJmIC8= | sh",
        'sh -c "$(echo cm0gLXJmIC8= | base64 -d)"',
        'eval "$(echo cm0gLXJmIC8= | base64 -d)"',
        "echo 726d202d7266202f | xxd -r -p | sh",
        "printf '\\x72\\x6d -rf /' | sh",
        "printf '\\162\\155 -rf /' | bash",
        "echo -e 'rm\\x20-rf\\x20/' | sh",
        "echo '/ fr- mr' | rev | sh",
        "echo 'ez -es /' | tr 'a-z' 'n-za-m' | sh",
        "bash <<< 'rm -rf /'",
        "bash <(echo rm -rf /)",
        "source <(echo rm -rf /)",
        "echo / | xargs rm -rf",
        "printf '/\\n' | xargs -n1 rm -rf",
        "python3 -c \"import os; os.system('rm -rf /')\"",
        "python -c 'import subprocess; subprocess.run(\"rm -rf /\", shell=True)'",
        "python -c \"import shutil; shutil.rmtree('/')\"",
        "perl -e 'system(\"rm -rf /\")'",
        "ruby -e '`rm -rf /`'",
        "awk 'BEGIN{system(\"rm -rf /\")}'",
        "cat <<EOF | sh\nrm -rf /\nEOF",
        "at now <<< 'rm -rf /'",
        "echo 'rm -rf /' | at now",
        "gdb -batch -ex 'shell rm -rf /'",
    ],
)
def test_what_is_hidden_from_a_reader_is_asked_about_each_time(command: str) -> None:
    """A seat belt does not hold these; no pattern allows them and no yes to them is remembered."""
    call = Asked.of("terminal", {"command": command}, (), HERE)
    wide = [Pattern.of("terminal(*)"), Pattern.of("terminal(@read-only)")]
    assert not call.rememberable
    assert not allows(wide, call, HERE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a(){",
        "$(",
        "`",
        "/*",
        "rm ",
        "((",
        "x;",
        "'",
        "{,}*",
        "sudo -u ",
        "{a,b}",
        "X=",
        "X=1;",
        "$X",
        "${X:-",
        "$(echo ",
        "echo x|",
        "|sh ",
        "$'",
        '"',
        "for a in ",
        "bash <(",
        "base64 -d|",
        "python -c '",
        "a=$a$a;",
        "<<< ",
    ],
)
def test_the_policy_is_quick_on_long_commands(part: str) -> None:
    started = time.process_time()
    hard_line(part * (19_999 // len(part)))
    hard_line("rm -rf /" + part * (19_000 // len(part)))
    assert time.process_time() - started < 2


@given(st.text(alphabet="rm -f/~$(){}`'\"\\;|&<>*\nsudo:=cbh,x0", max_size=80))
def test_no_command_makes_the_policy_raise(command: str) -> None:
    hard_line(command)


@pytest.mark.parametrize(
    "command",
    [
        "find / -type f -exec rm {} \\;", "find / -name '*' -delete", "find / -mindepth 1 -delete",
        "git -c alias.x='!rm -rf /' x", "git -c core.pager='rm -rf /' log", "git rebase -i --exec 'rm -rf /' main",
        "git fetch --upload-pack='rm -rf /' x", "GIT_SSH_COMMAND='rm -rf /' git fetch", "PAGER='rm -rf /' man ls",
        "A=1 EDITOR='rm -rf /' crontab -e", "PROMPT_COMMAND='rm -rf /' bash -i", "export PAGER='rm -rf /'",
        "function f { rm -rf /; }; f", "cat <(rm -rf /)", "tee >(rm -rf /) < x", "rm -rf ~root", "rm -rf ~root/",
        "killall -u root",
        "rm -rf $(pwd)/../../../..", "rm -rf $PWD/../../../..", "rm -rf ${PWD}/../../../..", "pkill -9 -u root",
        "ln -sf /dev/null /etc/passwd", "truncate -s 0 /etc/passwd", "cp x /etc/shadow", "tar --remove-files -cf /dev/null /",
        "tmux new -d 'rm -rf /'", "screen -dm rm -rf /", "vim -c '!rm -rf /'", "ex -c ':!rm -rf /'", "less '+!rm -rf /' x",
        "zip x.zip x -T -TT 'rm -rf /'", "npx -c 'rm -rf /'",
        "tar cf /dev/null x --checkpoint=1 --checkpoint-action=exec='rm -rf /'", "rsync -e 'rm -rf /' a b:c",
    ],
)  # fmt: skip
def test_commands_in_the_words_of_other_programs_are_found(command: str) -> None:
    assert hard_line(command, environ={"HOME": "/home/me"}, directory="/srv/a/b")


@pytest.mark.parametrize(
    "command",
    [
        "git commit -m 'never rm -rf / again'", "git log --grep='rm -rf /'", "git commit -am 'rm -rf / is bad'", "export A='b c'",
        "find . -type f -delete", "find / -name '*.pyc' -delete", "find / -type f -name core -delete", "tar cf x.tar src",
        "rm -rf ~/project/build", "rm -rf $PWD/build", "rm -rf $(pwd)/build", "ssh host ls /", "tmux new -d 'make all'",
        "pkill -u me firefox", "less +F log", "vim -c 'set nu' x", "cp /etc/passwd x",
        "ln -s /etc/passwd x", "cat <(ls /) <(ls .)",
        "GIT_SSH_COMMAND='ssh -i key' git fetch", "MESSAGE='rm -rf /'", "git -c user.name='A B' commit",
    ],
)  # fmt: skip
def test_what_is_only_said_in_them_is_left_to_a_person(command: str) -> None:
    assert hard_line(command, environ={"HOME": "/home/me"}, directory="/srv/a/b") is None
