"""Lines of shell from a grammar of tricks: what a harmless word may hide, and how a harmful one is disguised.

They act on files of the directory that they run in, and by programs of the sandbox, so running them does no
harm even where nothing else keeps it from doing any."""

from __future__ import annotations

import random

READS = (
    "git log", "git status -s", "git diff --stat", "ls", "ls -la *.txt", "cat a.txt", "head -1 a.txt", "grep -n o a.txt",
    "sort a.txt", "find . -name a.txt", "echo hi", "wc -l a.txt b.txt", "uniq a.txt", "cut -c1 a.txt", "sed -n 1p a.txt",
    "awk '{print $1}' a.txt", "echo 'a b' \"c d\" e\\ f", "printf '%s\\n' x", "true",
)  # fmt: skip
ACTS = (
    "rm precious", "touch owned", "curl http://x.test", "echo x > precious", "tee owned", "mv precious gone", "dd of=precious",
    "python3 -c 1", "chmod 777 a.txt", ": > precious", "cp a.txt owned",
)  # fmt: skip
OPTIONS = (
    "sort -o precious a.txt", "sort --outp=precious a.txt", "sort -ro precious a.txt", "sort a.txt -oowned", "uniq a.txt owned",
    "git log --output=owned", "git diff --no-index --output=owned a.txt b.txt", "git --exec-path=evil log",
    "git -c alias.st='!rm precious' st", "git -c core.fsmonitor='rm precious' status", "git -C evil status",
    "find . -delete", "find . -fprintf owned x", "find . -name a.txt -exec rm {} \\;", "find . -fls owned", "find . -ok rm {} +",
    "sed -n 'w owned' a.txt", "sed -i s/one/two/ a.txt", "sed '1e rm precious' a.txt", "sed s/one/x/wowned a.txt",
    "sed -n -e 'w owned' a.txt", "sed --in-place p a.txt", "sed 's/one/rm precious/e' a.txt", "sed -s 'wowned' a.txt",
    "awk 'BEGIN{system(\"rm precious\")}'", "awk '{print > \"precious\"}' a.txt", "awk 'BEGIN{print \"rm precious\" | \"sh\"}'",
    "awk 'BEGIN{\"rm precious\" | getline}'", "env -S 'rm precious'", "env X=1 rm precious", "xargs rm < b.txt",
    "echo precious | xargs rm", "echo rm precious | sh", "printf 'touch owned' | bash -s", "cut -c1 a.txt --output-delimiter=x > owned",
    "test -v 'a[$(rm precious)]'", "printf -v 'a[$(rm precious)]' x", "timeout 5 rm precious", "nohup nice -n 5 rm precious",
    "timeout -s 9 5 rm precious", "nice -5 rm precious", "env -u X -i /bin/sh -c 'echo x > owned'", "command rm precious",
    "tee < a.txt owned", "sh evil/ls", "./evil/ls", "evil/cat a.txt", "PATH=./evil:$PATH ls", "PATH=evil; ls", "time rm precious",
    "base64 -d <<< cm0gcHJlY2lvdXM= | sh", "echo suoicerp mr | rev | sh", "exec rm precious", "builtin eval 'rm precious'",
)  # fmt: skip
SEPARATORS = (
    ";", "; ", " && ", " || ", " | ", " & ", "\n", "&", "|", " |& ", "\r\n", ";\n\n", " \\\n; ", " ;; ",
    "\t;\t", "\f; ",
)  # fmt: skip


class Tricks:
    """Lines by chance; the same ``seed`` gives the same lines."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def line(self, depth: int = 2) -> str:
        """Return a line of shell: a harmless command, a harmful one, or several in one another."""
        choose = self._random.random()
        if depth == 0 or choose < 0.12:
            return self._disguised(self._random.choice(self._random.choice((READS, READS, ACTS, OPTIONS))))
        if choose < 0.2:
            return self._random.choice(OPTIONS)
        return self._around(self.line(depth - 1), self.line(depth - 1))

    def _around(self, a: str, b: str) -> str:
        name, quoted = a.split()[0] if a.split() else "ls", "'" + b.replace("'", "'\\''") + "'"
        return self._random.choice((
            *(f"{a}{self._random.choice(SEPARATORS)}{b}" for _ in range(12)),
            f"{a} # it's\n{b} # '", f"{a} #\\\n{b}", f"{a}#{b}", f"{a} '#'\n{b}", f"echo \\# {a}; {b}", f"{a} 2>/dev/null; {b} 2>&1",
            f"{a} $({b})", f'{a} "$({b})"', f"{a} `{b}`", f'{a} "`{b}`"', f"{a} '$({b})'", f"echo \"'$({b})'\"", f'{a} "\\$({b})"',
            f"{a} ${{X:-$({b})}}", f"{a} ${{X:=`{b}`}}", f"{a} $(( $({b}) + 1 ))", f"{a} <({b})", f"{a} >({b})", f"cat <<E\n$({b})\nE",
            f"cat <<'E'\n{b}\nE\n{a}", f"cat <<-E | sh\n\t{b}\n\tE", f"sh <<E\n{b}\nE", f"bash <<< {quoted}", f"cat <<E; {b}\nx\nE",
            f"bash -c {quoted}", f"bash -c -- {quoted}", f"sh -ec {quoted}", f"bash -c {quoted} {a}", f"eval {quoted}", f"eval {b}",
            f"timeout 5 sh -c {quoted}", f"env bash -c {quoted}", f"trap {quoted} EXIT; {a}", f"xargs -I{{}} sh -c {quoted} <<< x",
            f"{name}() {{ {b}\n}}; {a}", f"function {name} {{ {b}\n}}\n{a}", f"alias {name}={quoted}\n{a}", f"X={quoted}; $X", f"X={quoted}; eval $X",
            f"X={quoted} {a}", f". <(echo {quoted})", f"X=$({b}) {a}", f"X=({a} $({b}))", f"X[$({b})]=1", f"[[ 'x[$({b})]' -eq 1 ]]",
            f"((x[$({b})]))", f"let 'x[$({b})]'", f"echo ${{x[$({b})]}}", f"[ -n \"$({b})\" ]", f"read x < <({b})", f"export X=$({b}); {a}",
            f"X='$({b})'; echo \"${{X@P}}\"", f"if {a}; then {b}; fi", f"for i in 1; do {b}\ndone", f"while {b}; do break; done", f"! {b}",
            f"case x in x) {b};; esac", f"case x in (x) {b}\nesac", f"until {b}; do {a}; break; done", f"select i in 1; do {b}; done < a.txt",
            f"({a}; {b})", f"{{ {a}; {b}; }}", f"{{ {a}\n}} | {{ {b}\n}}", f"coproc {{ {b}\n}}; wait", f"coproc {b}", f"time {b}", f"a=1 b=2 {b}",
            f"{a} > /dev/null && {b}", f"{a} >owned", f"{a} >|owned", f"{a} &>owned", f"{a} >&owned", f"{a} 1<>precious >&1", f"> owned {a}",
            f"{a} 2>owned {b}", f"{a} < a.txt", f"cd evil && {a}", f"pushd evil; {b}", f"set -- {b}; \"$@\"", f"{a};{b};", f"exec 3>owned; {a}",
            f"echo {quoted}", f"echo {quoted} | cat", f"git log --grep={quoted}", f"IFS=x; {b}", f"shopt -s expand_aliases\n{a}", f"{a} \\\n {b}",
        ))  # fmt: skip

    def _disguised(self, line: str) -> str:
        if self._random.random() < 0.4:
            return line
        word, _, rest = line.partition(" ")
        at = self._random.randrange(1, len(word)) if len(word) > 1 else 0
        first, last = word[:at], word[at:]
        return self._random.choice((
            f"{first}''{last} {rest}", f'{first}""{last} {rest}', f"{first}\\{last} {rest}", f"'{word}' {rest}", f'"{word}" {rest}', f"\\{word} {rest}",
            f"{first}\\\n{last} {rest}", f"{first}$@{last} {rest}", f"{first}${{x}}{last} {rest}", f"{first}`true`{last} {rest}", f"$'{word}' {rest}",
            f"$'\\x{ord(word[0]):x}{word[1:]}' {rest}", f'$"{word}" {rest}', f"X={word}; $X {rest}", f"X={first}; ${{X}}{last} {rest}", f"$(echo {word}) {rest}",
            f"{word}${{IFS}}{rest.replace(' ', '${IFS}')}", "{" + f"{word},{rest.replace(' ', ',')}" + "}", f"{word}\t{rest}", f"{word}\u00a0{rest}",
            f"{word}\v{rest}", f"{word}\f{rest}", f"{word}\r{rest}", f"{word}\\ {rest}", f"{word}  {rest}", f"{word} \\\n{rest}", f"{word} {rest}\r",
            f"{word} {rest} ~", f"{word} {rest} 'a'b\"c\"", f"{word} {rest} --x=\"y z\"", f"{word} {rest} a{{b}}", f"{word} {rest} HEAD@{{1}}", f"{word} {rest} x#y",
            f"{word} {rest} '' \"\"", f"{word} {rest} \"a$\" b$", f"{word} {rest} \"\\q\\\\\\\"\"", f"{word} {rest} \\\\ \\' \\\"", f"{word} {rest} [ab].txt",
            f"{word} {rest} ?.txt", f"{word} {rest} \u200bé", f"{word} {rest} a=~/b", f"{word} {rest} \"$HOME\"", f"{word} {rest} $HOME/x", f"{word} {rest} !x",
            f"{word} {rest} =x ==", f"{word} {rest} }} {{", f"{word} {rest} if then", f"{word} {rest} 1 -2 3.5 10#2", f"{word} {rest} @(a|b)", f"{word} {rest} a\\\nb",
            f"{word} {rest} 'a\nb'", f"{word} {rest} \"a\\\nb\"", f"{word} {rest} 'it'\\''s'", f"{word} {rest} ^x %y", f"{word} {rest} *", f"{word} {rest} -- -x",
        ))  # fmt: skip
