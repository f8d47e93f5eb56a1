"""Results as text, a screen each; on a terminal the same blocks by rich."""
