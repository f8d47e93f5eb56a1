"""A step of two kernels beside each other that a thread waits for, then loads data; times in us."""

from graph.small_traces import repeated

#  thread 1  |long 5|short 5|sync ..................... 2|data 32 |     a step: 6 + 60 + 2 + 32 = 100
#  stream 7     +6 |k long 60                          |
#  stream 8           +6 |k short 40         |                          ends 15 before the other
STEP = """
    launch long_kernel 0 6 66
    launch short_kernel 5 11 51 stream=8
    call cudaDeviceSynchronize 10 68
    op data 68 100 op=data
"""


def steps():
    # Of no profiler that is known to cost anything: figures are those of the recorded step.
    return repeated(STEP, 100, profiler="by hand")
