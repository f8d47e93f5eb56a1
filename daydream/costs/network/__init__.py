"""Networks: clusters, what collectives take on them, and fitting both to measurements."""
