"""Clusters: groups of components that fire together, found by how short a description they allow."""
