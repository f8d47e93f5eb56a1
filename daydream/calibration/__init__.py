"""Calibration: times of a trace's operator calls, measured on this machine.

operators.py   an operator call made from its recorded shapes and element type
timing.py      what a call takes, on a CPU or a GPU
worker.py      the process that runs them, and how it is asked
run.py         which calls, within which time, and the table that is written
"""

from daydream.calibration.run import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
