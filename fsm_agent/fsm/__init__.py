"""The machine: the language of tables, choosing a row, running a state, the journal as a port, proofs and
bounds."""
