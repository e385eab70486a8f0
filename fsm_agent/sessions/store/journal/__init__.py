"""The journal of turns: written move by move, read back, and closed for turns that were left."""
