"""Evaluation: how well a decomposition explains its target, in numbers and in pictures."""
