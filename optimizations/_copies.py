"""Names of copies to the device, and of those from pageable memory, in traces of torch and nsys."""

from __future__ import annotations

TO_DEVICE = r"HtoD|HostToDevice"
PAGEABLE = r"(?i)pageable"
