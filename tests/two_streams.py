"""A step of two kernels beside each other that a thread waits for, then loads data; times in us."""

from graph.small_traces import call, launched, op, trace

#  thread 1  |long 5|short 5|sync ..................... 2|data 32 |     a step: 6 + 60 + 2 + 32 = 100
#  stream 7     +6 |k long 60                          |
#  stream 8           +6 |k short 40         |                          ends 15 before the other


def steps(number=4):
    rows = []
    for n in range(number):
        at = 100 * n
        rows += launched("long_kernel", at, at + 6, at + 66)
        rows += launched("short_kernel", at + 5, at + 11, at + 51, stream=8)
        rows += [call("cudaDeviceSynchronize", at + 10, at + 68), op("data", at + 68, at + 100, op="data")]
    # Of no profiler that is known to cost anything: figures are those of the recorded step.
    return trace(rows, steps=tuple(100.0 * n for n in range(number + 1)), profiler="by hand")
