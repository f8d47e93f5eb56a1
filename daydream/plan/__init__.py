"""Plans: which strategy fits into memory and takes the least time."""
