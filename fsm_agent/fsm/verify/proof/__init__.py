"""What is proved of a table before it is used: its lines are complete, nothing is stuck, every turn ends."""
