"""Small analyses over the events of a trace: one class, one callback, a result.

What a tool is, and what its callbacks are given, is in `tool.py`, how it is run in `run.py`, which events
a range leaves as well, those that ship in `shipped.py`. A tool reads a trace and
changes nothing.
"""
