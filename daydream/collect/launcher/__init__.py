"""Starting a script so that its processes record themselves, and keeping the trace that they leave."""
