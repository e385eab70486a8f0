"""Values of a conversation: messages, requests, replies, results, rules of a history, wires, compaction."""
