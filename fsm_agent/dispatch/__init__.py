"""Running turns in other processes: a message is queued in the store, a dispatcher assigns it, a worker
claims it and runs it.

The store is the source of truth: a queued turn is a row before any worker hears of it, and the journal
records the worker's progress. A dispatcher carries ids (``Order``) and no contents; the two implementations
are ``InProcess`` and ``temporal``. See docs/workers.md."""
