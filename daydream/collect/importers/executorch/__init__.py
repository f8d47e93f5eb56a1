"""ExecuTorch: ETDump files with their ETRecord, and tables of its Inspector, without torch or executorch."""
