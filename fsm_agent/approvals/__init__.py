"""Approvals: questions and how they are shown, rules, remembered answers, and the parsing of shell
commands."""
