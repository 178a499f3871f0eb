"""Causal-importance functions, which predict from clean activations which components matter."""
