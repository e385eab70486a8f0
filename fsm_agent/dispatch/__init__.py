"""Turns that other processes run: a message is queued in the store, a dispatcher says who is to run it, a
worker claims it and runs it.

The store is the truth: a queued turn is a row before any worker hears of it, and what a worker does is in the
journal. A dispatcher carries ids (``Order``) and no contents; ``in_process`` and ``temporal`` are the two
that there are. See docs/workers.md."""
