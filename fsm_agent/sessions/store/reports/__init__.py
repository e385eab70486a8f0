"""What people are shown of sessions: lists, records, figures of some days, and the health of the file."""
