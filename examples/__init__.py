"""Example traces and scripts; `daydream example` writes them to where you are."""
