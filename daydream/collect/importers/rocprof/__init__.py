"""rocprofv3 of ROCm: its JSON (`--output-format json`) and its CSV tables, one run in several of them."""
