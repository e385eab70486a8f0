"""The values of a conversation: messages, what states ask for and get back, results, rules of a history,
wires, compaction."""
