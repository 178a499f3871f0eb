"""Targets: the frozen networks that are taken apart."""
