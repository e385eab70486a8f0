"""Finding messages of all sessions by their words."""
