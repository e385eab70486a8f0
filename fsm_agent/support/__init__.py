"""Small things that know nothing of agents: clock, files, threads, text, redaction."""
