"""Recording inside the training process. Nothing here may change what the script computes."""
