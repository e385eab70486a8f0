"""Turns of the user's own tables under the debugger: stored move by move, at a gate, forked and gone on with."""
