"""Shared by the eight states: the parts of a turn, the facts that decide events, pure helpers, and tables of
errors and places."""
