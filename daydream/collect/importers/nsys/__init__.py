"""Nsight Systems SQLite exports as a `Recording`. The only place that knows their tables."""
