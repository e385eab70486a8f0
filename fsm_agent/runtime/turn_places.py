"""How many turns run at once in this process: who may begin, and who stands in the line."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future

Place = Future[None]
"""Done when its turn may run."""


class TurnPlaces:
    """The places of running turns, from any thread and event loop: first come, first served. Each who comes
    says how many may run then at most; who names no number is let in at once, and counted."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a fork of the process none of the turns runs."""
        self._lock = threading.Lock()
        self._taken = 0
        self._line: deque[tuple[int, Place]] = deque()

    def enter(self, most: int | None) -> Place:
        """Take a place, or stand in the line for one. ``leave`` gives it back in either case."""
        place = Place()
        with self._lock:
            if most is None:
                self._give(place)
            else:
                self._line.append((most, place))
                self._let_in()
        return place

    def leave(self, place: Place) -> None:
        """Give a place back, or leave the line."""
        with self._lock:
            if not place.done():
                self._drop(place)
            elif place.exception() is None:
                self._taken -= 1
            self._let_in()

    def refuse(self, place: Place, why: Exception) -> None:
        """Send away who stands in the line; who is in already stays."""
        with self._lock:
            if not place.done():
                self._drop(place)
                place.set_exception(why)
                self._let_in()

    def ahead(self, place: Place) -> tuple[int, int]:
        """(turns that run, turns that stand in the line before this one)."""
        with self._lock:
            before = [one for _, one in self._line]
            return self._taken, before.index(place) if place in before else 0

    def _drop(self, place: Place) -> None:
        self._line = deque(one for one in self._line if one[1] is not place)

    def _let_in(self) -> None:
        """Nobody overtakes: who would find room behind one who does not waits, too."""
        while self._line and self._taken < self._line[0][0]:
            self._give(self._line.popleft()[1])

    def _give(self, place: Place) -> None:
        self._taken += 1
        place.set_result(None)


PLACES = TurnPlaces()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PLACES.forget)
