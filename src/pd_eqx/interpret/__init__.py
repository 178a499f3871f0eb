"""Interpret: short labels for components from a language model, and how well each label holds up."""
