"""What an optimization is: its options, the registry of names, composition and order."""
