"""Conversations that go on: the live session, a turn in the hands of its user, its hold on its session, and
the store."""
