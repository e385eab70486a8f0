"""Continuing conversations: the live session, a turn for its caller, the claim of a turn on its session,
and the store."""
