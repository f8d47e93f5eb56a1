"""What kernels and operators cost: work from shapes, devices, and predicted durations.

work(graph, selection)     FLOP and bytes, family
bound(graph, selection)    compute, memory or latency, with achieved shares of the peaks
retime(graph, selection)   durations in another element type, on another device, with other work
scaled_time(graph, ...)    durations when the work of each task is multiplied, on GPU or CPU
"""

from daydream.costs.device.call_scaling import scaled_time
from daydream.costs.device.retime import Retimed, retime
from daydream.costs.device.table import KernelTable
from daydream.costs.devices import DEVICES, Device, device_of, find_device
from daydream.costs.kernels import Bound, Work, bound, work
from daydream.costs.resize.growth import resized_work

__all__ = [
    "DEVICES",
    "Bound",
    "Device",
    "KernelTable",
    "Retimed",
    "Work",
    "bound",
    "device_of",
    "find_device",
    "resized_work",
    "retime",
    "scaled_time",
    "work",
]
