"""Work and times when a size of the input changes: batch, sequence length."""
