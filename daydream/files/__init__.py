"""Files: written whole or not at all, read within limits. How bytes reach a disk, nothing else."""
