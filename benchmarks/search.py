"""What searching costs: 100,000 and 1,000,000 messages, words that are rare and common, in Latin and in
Chinese script.

    make bench                      # or: python benchmarks/search.py --messages 1000000 --runs 50

Messages have 5 to 400 words (50 on average) out of 50,000 by Zipf's law; every fifth also 40 Chinese
characters out of 3,000. They are put into the database directly, indexed as a search does it, and searched
through the same function as ``fsm-agent sessions search``: newest hits from the index, read, ranked, cut into
snippets. Each class of words is searched with different words; p50 and p95 over all of them, on a warm cache.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fsm_agent.fsm.codec import dumps
from fsm_agent.sessions.store.database import SqlConnection
from fsm_agent.sessions.store.search import BESIDE, Among, catch_up, search
from fsm_agent.sessions.store.search.indexes import SqliteIndex
from fsm_agent.sessions.store.sqlite import SqliteDatabase

WORDS, CHARACTERS, A_SESSION = 50_000, 3_000, 50
LATIN = [f"{'bcdfghklmnprstvz'[n % 16]}{'aeiou'[n // 16 % 5]}{n}" for n in range(WORDS)]
HAN = [chr(0x4E00 + n) for n in range(CHARACTERS)]


def zipf(count: int) -> list[float]:
    return list(itertools.accumulate(1 / (n + 1) for n in range(count)))


def bodies(rng: random.Random, count: int) -> Iterator[str]:
    latin, han = zipf(WORDS), zipf(CHARACTERS)
    for number in range(count):
        words = rng.choices(LATIN, cum_weights=latin, k=min(400, int(rng.expovariate(1 / 45)) + 5))
        text = " ".join(words)
        if number % 5 == 0:
            text += "。" + "".join(rng.choices(HAN, cum_weights=han, k=40))
        yield dumps({"role": ("user", "assistant", "tool")[number % 3], "content": text})


def fill(database: SqliteDatabase, count: int) -> None:
    now, sessions = time.time(), count // A_SESSION
    rows = (
        (
            f"s-{number // A_SESSION}",
            number % A_SESSION + 1,
            now - (count - number) * 30,
            ("user", "assistant", "tool")[number % 3],
            body,
        )
        for number, body in enumerate(bodies(random.Random(1), count))
    )

    def write(c: SqlConnection) -> None:
        c.executemany(
            "INSERT INTO sessions (id, created, touched) VALUES (?, ?, ?)",
            ((f"s-{n}", now, now) for n in range(sessions)),
        )
        c.executemany(
            "INSERT INTO messages (session, number, version, at, role, body) VALUES (?, ?, 0, ?, ?, ?)", rows
        )

    database.write(write)


def classes(rng: random.Random) -> dict[str, Callable[[], str]]:
    return {
        "in nearly every message": lambda: LATIN[rng.randrange(3)],
        "common (rank 10 to 100)": lambda: LATIN[rng.randrange(10, 100)],
        "middling (1,000 to 5,000)": lambda: LATIN[rng.randrange(1_000, 5_000)],
        "rare (45,000 to 50,000)": lambda: LATIN[rng.randrange(45_000, 50_000)],
        "nowhere": lambda: f"absent{rng.randrange(10**6)}",
        "two common words": lambda: f"{LATIN[rng.randrange(10, 100)]} {LATIN[rng.randrange(10, 100)]}",
        "a phrase of two": lambda: f'"{LATIN[rng.randrange(20)]} {LATIN[rng.randrange(20)]}"',
        "begin* (four letters)": lambda: f"{LATIN[rng.randrange(10, 50_000)][:4]}*",
        "one common character": lambda: HAN[rng.randrange(20)],
        "one rare character": lambda: HAN[rng.randrange(2_000, 3_000)],
        "two characters": lambda: "".join(rng.choices(HAN[:200], k=2)),
        "four characters": lambda: "".join(rng.choices(HAN[:12], k=4)),
    }


def measure(database: SqliteDatabase, runs: int) -> None:
    rng = random.Random(2)
    print(f"  {'words':<28} {'p50 ms':>8} {'p95 ms':>8}   hits looked at")
    for name, word in classes(rng).items():
        show(name, [timed(database, word(), Among()) for _ in range(runs)])
    show(
        "common, by the user, 7 days",
        [timed(database, LATIN[n % 90 + 10], Among(roles=("user",), days=7)) for n in range(runs)],
    )
    show(
        "common, in one session",
        [timed(database, LATIN[n % 9], Among(session=f"s-{n * 7}")) for n in range(runs)],
    )


def timed(database: SqliteDatabase, text: str, among: Among) -> tuple[float, int]:
    began = time.perf_counter()
    found = search(database, text, among)
    return (time.perf_counter() - began) * 1000, found.looked_at


def show(name: str, taken: list[tuple[float, int]]) -> None:
    spent = sorted(ms for ms, _ in taken)
    p95 = spent[min(len(spent) - 1, int(len(spent) * 0.95))]
    looked = sum(count for _, count in taken) / len(taken)
    print(f"  {name:<28} {spent[len(spent) // 2]:>8.2f} {p95:>8.2f}   {looked:.0f}")


def beside(database: SqliteDatabase) -> None:
    """How long the writer is held by one batch beside running turns."""
    held = []
    for _ in range(100):
        began = time.perf_counter()
        database.write(lambda c: SqliteIndex().index_batch(c, *BESIDE))
        held.append((time.perf_counter() - began) * 1000)
    held.sort()
    print(
        f"  a batch of {BESIDE[0]} beside running turns holds the writer {held[50]:.1f} ms (p95"
        f" {held[95]:.1f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What searching costs.")
    parser.add_argument("--messages", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    for count in options.messages:
        with tempfile.TemporaryDirectory() as home:
            path = Path(home) / "sessions.db"
            database = SqliteDatabase(path)
            fill(database, count)
            before = path.stat().st_size
            print(f"{count:,} messages, {before / 1e6:.0f} MB")
            beside(database)
            left = count - 100 * BESIDE[0]
            began = time.perf_counter()
            catch_up(database)
            spent = time.perf_counter() - began
            database.write(lambda c: None)
            size = path.stat().st_size - before
            print(
                f"  indexed at {left / spent:,.0f} messages a second ({spent:.0f} s), {size / count:.0f}"
                " bytes a message"
            )
            measure(database, options.runs)
            database.close()
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
