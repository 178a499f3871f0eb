"""Batches, each a pure function of a key and a step."""
