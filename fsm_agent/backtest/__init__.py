"""Backtest: what recorded turns would have done with other settings, another prompt, other tool schemas,
another table or other states, without asking a model again.

>>> from fsm_agent.backtest import Backtest, Change
>>> found = Backtest.of_home("recorded").run(Change(settings={"api_max_retries": 1}))  # doctest: +SKIP
>>> print(found.counts["differs"], "of", found.total, "turns move otherwise")  # doctest: +SKIP

``fsm-agent backtest`` is the same from a terminal. ``fsm_agent.backtest.playback`` describes how a turn is
played."""

from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.run import Backtest, Found
from fsm_agent.backtest.verdict import Side, Verdict

__all__ = ["Backtest", "Change", "Found", "Side", "Verdict"]
