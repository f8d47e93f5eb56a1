"""Many independent questions side by side: in this process, in several, or on a Dask cluster."""
