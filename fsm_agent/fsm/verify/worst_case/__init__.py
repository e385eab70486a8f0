"""How much a turn can do at most: formulas, smaller bounds for given limits, and runs that reach them."""
