"""The values of a conversation: messages, requests and replies of states, results, rules of a history, wires,
compaction."""
