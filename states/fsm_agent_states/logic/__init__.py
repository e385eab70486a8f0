"""What the eight states share: the parts of a turn, the facts that decide events, pure helpers, and tables of
errors and places."""
