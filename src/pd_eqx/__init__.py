"""Parameter decomposition in Equinox."""
