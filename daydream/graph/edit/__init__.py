"""Changes of a graph: insert, remove, repeat, move. They take task ids and return task ids."""
