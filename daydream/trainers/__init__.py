"""Recording from within a training loop that somebody else wrote: one line, and the loop never fails for it.

Recording starts and stops with the trainer's own events. What goes wrong is said in the log, at the level
of a warning, and training goes on.
"""
