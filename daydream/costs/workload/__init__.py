"""Work of operator calls: FLOP, bytes and family, from names, shapes and counters."""
