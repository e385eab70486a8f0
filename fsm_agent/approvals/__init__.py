"""Who may say yes to what: questions and how they are shown, rules, remembered answers, the reading of
commands."""
