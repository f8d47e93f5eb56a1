"""Questions to a graph: which tasks match, how they group, what their columns, calls and layers are."""
