"""What the rows of a recording mean: steps, phases, layers, nesting, launches, collectives."""
