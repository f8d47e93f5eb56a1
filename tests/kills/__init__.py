"""Commands that are killed at any moment, and commands that write the same file at once."""
