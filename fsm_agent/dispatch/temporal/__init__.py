"""Temporal as the dispatcher (extra ``temporal``): a workflow a session, an activity a turn."""
