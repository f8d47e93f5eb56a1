"""The trace: what was measured, as columns, its parquet file, and the one check of what is read."""
