"""Backtest: what recorded turns would have done under other settings, another prompt, other schemas of tools,
another table or other states, without asking a model again.

>>> from fsm_agent.backtest import Backtest, Change
>>> found = Backtest.of_home("recorded").run(Change(settings={"api_max_retries": 1}))  # doctest: +SKIP
>>> print(found.counts["differs"], "of", found.total, "turns move otherwise")  # doctest: +SKIP

``fsm-agent backtest`` is the same from a terminal. How a turn is played: see
``fsm_agent.backtest.playback``."""

from fsm_agent.backtest.playback import Change
from fsm_agent.backtest.run import Backtest, Found
from fsm_agent.backtest.verdict import Side, Verdict

__all__ = ["Backtest", "Change", "Found", "Side", "Verdict"]
