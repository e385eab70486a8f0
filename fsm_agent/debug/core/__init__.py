"""The debugger without a user interface: run control, breakpoints, records, remote turns."""
