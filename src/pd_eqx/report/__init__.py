"""A run as one HTML file that a person opens: what is in it, where it comes from, and how it is written."""
