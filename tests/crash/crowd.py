"""Several processes on one session of one home, each waiting for its chance to add a message; killed, paused,
declared dead.

Run as a program: ``crowd.py PROCESSES SECONDS SEED MODE TROUBLE [MUTANT]``. It forks the workers, disturbs
them until time is up, and prints one JSON object: the counts, and what is wrong. It compares three
records that the engine does not keep: lines that a worker writes when it receives a result, lines
that the tool writes when it runs, and what the model was shown (each answer says it). The database is read
with plain SQL.

``MODE``: ``plain`` (a model that must have seen the whole conversation), ``rotate`` (compactions into child
sessions all the time). ``TROUBLE``: ``none``, ``kill`` (kill -9, and SIGSTOP for a while), ``locks`` (files
that show which processes live are removed, so running turns are taken over while their owners continue)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from fsm_agent import Agent, Settings, tool
from fsm_agent.errors import ConfigError, JournalError, SessionBusy
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog
from fsm_agent.testing import ScriptedModel, call, repeat, text, tools
from tests.crash.driver import MEMORY, warm_up
from tests.crash.scene import assert_takes_the_place, logging_with
from tests.crash.taking_over import NoFence as Unfenced

SESSION = "s-crowd"
SUMMARY = "what was said before, in short"
TOKEN = re.compile(r"[QA]\[[\w.-]+\]")
SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}, "backoff": {"seed": 1}}
Record = dict[str, Any]


def tokens(value: Any) -> list[str]:
    """The questions and answers that are named in a text, in order."""
    return TOKEN.findall(value if isinstance(value, str) else json.dumps(value))


def digest(seen: list[str]) -> str:
    return hashlib.sha1(" ".join(seen).encode()).hexdigest()[:16]


def answer(body: Record) -> Any:
    """Uses the tool once on request; the answer names the question and everything seen before."""
    said = [row for row in body["messages"] if row["role"] != "system"]
    seen = [token for row in said for token in tokens(row.get("content") or "")]
    if "tools" not in body:
        return text(SUMMARY)
    question = next(token for token in reversed(seen) if token[0] == "Q")[2:-1]
    if said[-1]["role"] == "user" and "use the tool" in json.dumps(said[-1]):
        return tools(call("put", {"key": question}, f"c-{question}"))
    summaries = [place for place, row in enumerate(said) if SUMMARY in json.dumps(row.get("content"))]
    behind = said[max(summaries, default=-1) + 1 :]  # first rows stay before it
    recent = [token for row in behind for token in tokens(row.get("content") or "")]
    last = next((token[2:-1] for token in reversed(recent) if token[0] == "A"), "none")
    return text(f"A[{question}] seen={digest(seen)} last={last}")


def line(path: Path, record: Record) -> None:
    """One whole line, safe at once."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, json.dumps(record).encode() + b"\n")
    os.fsync(handle)
    os.close(handle)


def lines(path: Path) -> list[Record]:
    return [json.loads(one) for one in path.read_text().splitlines()] if path.exists() else []


class NoRead(ConversationLog):
    """The session is not read in the transaction that claims it."""

    def __init__(self, database: Any, session: Any, *given: Any, **named: Any) -> None:
        super().__init__(database, session, *given, **named)
        self._before = session.id, list(session.rows), dict(session.numbers), session.next_number

    def open(self) -> dict[str, Any]:
        one = self.session
        one.id, one.rows, one.numbers, one.next_number = self._before
        return super().open()


class NoFence(ConversationLog):
    """Compares nothing before a write, and reports no loss."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.fence = Unfenced(self.fence.turn_id)


LOGS = {"": ConversationLog, "no read": NoRead, "no fence": NoFence}
assert_takes_the_place(NoRead, NoFence)
STOP, ENOUGH, ROTATIONS = "stop", 40, 4
"""The file that ends the workers; completed turns, and rotations of the session, that a verdict needs."""


class Worker:
    """One process: says one thing after the other, each until it was said."""

    def __init__(self, home: Path, name: str, seed: int, mode: str, trouble: str, mutant: str) -> None:
        self.home, self.name, self.mode, self.trouble = home, name, mode, trouble
        self.chance = random.Random(seed)
        speaker = logging_with(LOGS[mutant])

        @tool(effect="unsafe")
        def put(key: str) -> str:
            """Do what cannot be undone."""
            line(home / "world.jsonl", {"key": key})
            time.sleep(self.chance.uniform(0, 0.02))
            return "done"

        compression = {"mode": "rotate" if mode == "rotate" else "in_place"}
        settings = Settings.of({**SETTINGS, "compression": compression})
        store = Store(home)
        self.agents = [
            speaker(
                ScriptedModel(repeat(answer)), tools=[put], toolsets=[], system_prompt="You are a test.", home=home, store=store,
                session_id=SESSION, context_window=100_000, settings=settings,
            )
            for _ in range(2)
        ]  # fmt: skip

    def run(self) -> None:
        number, stop = 0, self.home / STOP
        while not stop.exists():
            number += 1
            words = f"Q[{self.name}-{number}] " + "use the tool" * (self.chance.random() < 0.4)
            words += " and so on" * 200 * (self.mode == "rotate")  # a compaction is to be worth its summary
            while not stop.exists() and not self.tried(words):
                time.sleep(self.chance.uniform(0.001, 0.03))

    def tried(self, words: str) -> bool:
        """Say it, or do something else first; ``False`` when it must be tried again."""
        agent, what = self.chance.choice(self.agents), self.chance.random()
        said = False
        try:
            if what < 0.08:
                self.report(agent.resume(SESSION).run())
            elif what < 0.11 and self.mode == "plain":
                self.undo(agent)
            elif what < 0.3 and self.mode == "rotate":
                agent.compact()
            else:
                self.report(agent.run_conversation(words))
                said = True
        except (SessionBusy, ConfigError) as error:
            if isinstance(error, ConfigError) and not re.match("nothing to|no such session", str(error)):
                self.failed()
            return False
        except JournalError:  # taken over while it ran: the new owner continues it, or has abandoned it
            if self.trouble != "locks":
                self.failed()
            return True
        except Exception:
            self.failed()
        return said

    def undo(self, agent: Agent) -> None:
        """Say so before and after: a process that is killed in between may have done it."""
        line(self.home / "reports.jsonl", {"undoes": self.name})
        undone: tuple[str, ...] = ()
        try:
            undone = agent.undo().turns
        finally:
            line(self.home / "reports.jsonl", {"undone": undone})

    def report(self, result: Any) -> None:
        told = {"answer": result.final_response, "completed": result.completed, "stored": result.stored}
        line(self.home / "reports.jsonl", {**told, "turn": result.turn_id, "problems": result.cleanup_errors})

    def failed(self) -> None:
        line(self.home / "reports.jsonl", {"error": traceback.format_exc(limit=-4)})


class Crowd:
    """The workers, and who troubles them."""

    def __init__(
        self, home: Path, count: int, seconds: float, seed: int, mode: str, trouble: str, mutant: str
    ) -> None:
        self.home, self.mode, self.trouble, self.mutant = home, mode, trouble, mutant
        self.chance, self.until = random.Random(seed), time.time() + seconds
        self.began, self.kills, self.stops, self.removed = 0, 0, 0, 0
        self.workers = [self.begin() for _ in range(count)]

    def begin(self) -> int:
        self.began += 1
        name, seed = f"w{self.began}", self.chance.randrange(2**32)
        child = os.fork()
        if child:
            return child
        try:
            Worker(self.home, name, seed, self.mode, self.trouble, self.mutant).run()
        except BaseException:
            line(self.home / "reports.jsonl", {"error": traceback.format_exc(limit=-4)})
        os._exit(0)

    def run(self) -> None:
        """For the seconds that were asked for; on a busy machine for longer, until enough was said to judge."""
        last = time.time() + 6 * (self.until - time.time())
        while time.time() < self.until or (not self.enough() and time.time() < last):
            time.sleep(self.chance.uniform(0.05, 0.5))
            if self.trouble == "kill":
                self.disturb(self.chance.randrange(len(self.workers)))
            elif self.trouble == "locks":
                self.declare_dead()
        (self.home / STOP).touch()
        for worker in self.workers:
            os.waitpid(worker, 0)

    def enough(self) -> bool:
        """Were ``ENOUGH`` turns reported as completed and stored, and one as undone, or the session rotated?"""
        reports = lines(self.home / "reports.jsonl")
        if sum(bool(one.get("completed") and one["stored"]) for one in reports) < ENOUGH:
            return False
        if self.mode == "plain":
            return any(one.get("undone") for one in reports)
        with contextlib.closing(opened(self.home)) as c:
            return walked(c)[0] >= ROTATIONS

    def disturb(self, place: int) -> None:
        if self.chance.random() < 0.2:
            os.kill(self.workers[place], signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(self.workers[place], signal.SIGCONT)
            self.stops += 1
        else:
            os.kill(self.workers[place], signal.SIGKILL)
            os.waitpid(self.workers[place], 0)
            self.workers[place] = self.begin()
            self.kills += 1

    def declare_dead(self) -> None:
        files = sorted((self.home / "owners").glob("*.lock"))
        if files:
            self.chance.choice(files).unlink(missing_ok=True)
            self.removed += 1


def opened(home: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{home / 'sessions.db'}?mode=ro", uri=True)


def verdict(home: Path, mode: str) -> Record:
    """What was reported against what is stored."""
    reports, world = lines(home / "reports.jsonl"), lines(home / "world.jsonl")
    c = opened(home)
    undone = {turn for one in reports for turn in one.get("undone", ())}
    stored = {turn for (turn,) in c.execute("SELECT id FROM turns WHERE undone IS NOT NULL")}
    killed = sum("undoes" in one for one in reports) - sum("undone" in one for one in reports)
    wrong = [one["error"] for one in reports if "error" in one]
    wrong += [f"{undone - stored} was undone and is there"] if undone - stored else []
    wrong += [f"{stored - undone} vanished without an undo"] if len(stored - undone) > killed else []
    undone |= stored
    done = [one for one in reports if one.get("completed") and one["stored"] and one["turn"] not in undone]
    silent = [one for one in reports if one.get("stored") is False and not one["problems"]]
    wrong += [f"not stored, and no word of why: {one}" for one in silent]
    ran = Counter(one["key"] for one in world)
    wrong += [f"the tool ran {times} times for {key}" for key, times in ran.items() if times > 1]
    (whole,) = c.execute("PRAGMA integrity_check").fetchone()
    wrong += [] if whole == "ok" else [whole]
    rotations, walk = walked(c)
    wrong += walk
    wrong += (plain_problems if mode == "plain" else rotated_problems)(c, done)
    counted = {"turns": len(done), "undone": len(undone), "rotations": rotations, "tools": len(world)}
    return {**counted, "wrong": wrong[:20]}


def walked(c: sqlite3.Connection) -> tuple[int, list[str]]:
    """(how often the session went on as another, where that is not one line)."""
    sessions = {row[0]: row[1:] for row in c.execute("SELECT id, parent, successor FROM sessions")}
    wrong = []
    for name, (parent, _) in sessions.items():
        if parent is not None and sessions[parent][1] != name:
            wrong.append(f"{name} is not what {parent} went on as: the conversation forked")
    ends = [name for name, (_, successor) in sessions.items() if successor is None]
    wrong += [f"the conversation has several ends: {ends}"] if len(ends) != 1 else []
    return len(sessions) - 1, wrong


def plain_problems(c: sqlite3.Connection, done: list[Record]) -> list[str]:
    """Every turn is in the transcript once, whole, after all that its model saw."""
    (version,) = c.execute("SELECT version FROM sessions WHERE id = ?", (SESSION,)).fetchone()
    row = c.execute(
        "SELECT numbers FROM transcripts WHERE session = ? AND version = ?", (SESSION, version)
    ).fetchone()
    base = json.loads(row[0]) if row else []
    bodies = dict(c.execute("SELECT number, body FROM messages WHERE session = ?", (SESSION,)).fetchall())
    later = c.execute(
        "SELECT number FROM messages WHERE session = ? AND version = ? ORDER BY number", (SESSION, version)
    )
    rows = [json.loads(bodies[number]) for number in (*base, *(number for (number,) in later))]
    wrong, place, before = [], dict[str, int](), list[str]()
    for number, said in enumerate(rows):
        for token in tokens(said.get("content") or "") if said["role"] in ("user", "assistant") else ():
            if token in place:
                wrong.append(f"{token} is there twice")
            place[token] = number
            before.append(token)
    for one in done:
        question = tokens(one["answer"])[0][2:-1]
        asked, answered = place.get(f"Q[{question}]"), place.get(f"A[{question}]")
        if asked is None or answered is None:
            what = c.execute("SELECT rowid, seq, epoch, exit, undone FROM turns WHERE id = ?", (one["turn"],))
            of = "SELECT number, version, active, role FROM messages WHERE turn = ? ORDER BY number"
            found = [version, what.fetchall(), c.execute(of, (one["turn"],)).fetchall()]
            later = c.execute("SELECT * FROM transcripts WHERE version >= ?", (version - 1,)).fetchall()
            wrong.append(f"{one['turn']} was completed and is not in the store: {question}\n{found}\n{later}")
            continue
        roles = "".join(said["role"][0] for said in rows[asked : answered + 1])
        if not re.fullmatch(r"u(at)?a", roles):
            wrong.append(f"{question} is not whole: {roles}")
        seen = before[: before.index(f"Q[{question}]") + 1]
        if f"seen={digest(seen)}" not in one["answer"]:
            wrong.append(f"the model of {question} saw something else than what is stored")
    return wrong


def rotated_problems(c: sqlite3.Connection, done: list[Record]) -> list[str]:
    """Every turn is stored, and its model saw nothing older as the newest answer than the one before it. Turns
    follow each other as they were written down, whatever the clock said."""
    told = "id, session, state, seq, epoch, exit, ROUND(began, 3), ROUND(ended, 3)"
    rows = c.execute(f"SELECT {told} FROM turns ORDER BY rowid").fetchall()
    turns = [row[0] for row in rows]
    stored: dict[str, set[str]] = {}
    said = "SELECT turn, body FROM messages WHERE role IN ('user', 'assistant') AND turn IS NOT NULL"
    for turn, body in c.execute(said):
        stored.setdefault(turn, set()).update(tokens(json.loads(body).get("content") or ""))
    order = {turn: number for number, turn in enumerate(turns)}
    known = [(turn, token) for turn, found in stored.items() if turn in order for token in found]
    of = {token[2:-1]: order[turn] for turn, token in known if token[0] == "Q"}
    wrong, previous = [], -1
    for one in sorted(done, key=lambda one: order.get(one["turn"], -1)):
        question = tokens(one["answer"])[0][2:-1]
        if not {f"Q[{question}]", f"A[{question}]"} <= stored.get(one["turn"], set()):
            wrong.append(f"{one['turn']} was completed and is not in the store: {question}")
        last = one["answer"].rpartition("last=")[2]
        if last != "none" and of.get(last, -1) < previous:
            between = "\n".join(map(str, rows[of.get(last, 0) : order[one["turn"]] + 1]))
            line = c.execute("SELECT id, parent, successor FROM sessions ORDER BY created").fetchall()
            shown = f"the model of {question} was shown {last} as the newest answer: it forgot"
            wrong.append("\n".join([shown, between, *map(str, line[-4:])]))
        previous = order.get(one["turn"], previous)
    return wrong


def main(count: str, seconds: str, seed: str, mode: str, trouble: str, mutant: str = "") -> None:
    warm_up()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as place:
        home = Path(place)
        crowd = Crowd(home, int(count), float(seconds), int(seed), mode, trouble, mutant)
        crowd.run()
        counted = {"kills": crowd.kills, "stops": crowd.stops, "removed": crowd.removed}
        print(json.dumps({**counted, **verdict(home, mode)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
