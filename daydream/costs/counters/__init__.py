"""Counters that a profiler wrote beside a trace: read by what a file holds, and joined to its kernels.

Counting makes launches run one by one, and again: what such a run says of time is never used.
"""
