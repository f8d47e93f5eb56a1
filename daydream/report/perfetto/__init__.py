"""Timelines for https://ui.perfetto.dev: measured, replayed and predicted."""
