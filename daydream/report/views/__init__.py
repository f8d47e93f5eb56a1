"""A function for each result: what is shown of it, as blocks."""
