"""Which (state, counters) pairs turns reach, for given limits: exact search, runs that cover rows, a model
for spin."""
