"""Where traces come from: importers of profiler files, and what is derived from their rows."""
