"""Answers: replay, prediction, ranking, sweeps, scale-out, comparison, each with how far to trust it."""
