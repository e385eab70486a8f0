"""The debugger without a face: run control, breakpoints, records, and how another process is reached."""
