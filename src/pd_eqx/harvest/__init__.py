"""Harvest: what every component did on many batches, in one pass, in tables that pandas and polars read."""
