"""What the eight states share: pure helpers, and the tables of errors and of places in the picture."""
