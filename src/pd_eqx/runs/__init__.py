"""Runs: a configuration, a directory, and the loop that turns the one into the other."""
