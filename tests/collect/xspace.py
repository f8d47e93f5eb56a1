"""XSpaces written by hand, after the field numbers of `xplane.proto`: times in ns, as JAX writes them."""


def varint(number):
    number &= (1 << 64) - 1
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


def field(number, value):
    """One field: a varint of a number, else bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


class PlaneWriter:
    """A plane: events by name, stats by name; texts as references, as XLA writes them."""

    def __init__(self, name, **stats):
        self.name = name
        self.names = {}
        self.texts = {}
        self.lines = b""
        self.stats = b"".join(field(6, self.stat(key, value)) for key, value in stats.items())

    def stat(self, name, value):
        which = field(1, self.text(name))
        return which + (field(3, value) if isinstance(value, int) else field(7, self.text(value)))

    def text(self, text):
        return self.texts.setdefault(text, len(self.texts) + 1)

    def line(self, name, ident, events, *, begin_ns=1_000):
        """Add a line of events: name, start and end in ns, and a dict of stats."""
        inner = field(1, ident) + field(2, name) + field(3, begin_ns)
        for what, start, end, stats in events:
            ident = self.names.setdefault(what, len(self.names) + 1)
            event = field(1, ident) + field(2, (start - begin_ns) * 1000) + field(3, (end - start) * 1000)
            inner += field(
                4, event + b"".join(field(4, self.stat(key, value)) for key, value in stats.items())
            )
        self.lines += field(3, inner)

    def done(self):
        found = field(1, 7) + field(2, self.name) + self.lines
        for number, table in ((4, self.names), (5, self.texts)):
            for text, ident in table.items():
                found += field(number, field(1, ident) + field(2, field(1, ident) + field(2, text)))
        return found + self.stats


def training(steps=4, *, vendor="Nvidia", calls_apart=False):
    """A training step a range: two operators launch a kernel each and one an all-reduce; the host waits.

    From the documented schema and the names in public profiles: no recording.
    """
    gpu = PlaneWriter(
        "/device:GPU:0",
        device_vendor=vendor,
        gpu_device_name="NVIDIA A100-SXM4-80GB",
        core_count=108,
        memory_bandwidth=2_000_000_000_000,
    )
    host = PlaneWriter("/host:CPU")
    forward, backward = (
        "jit(step)/jvp(MLP)/Dense_0/dot_general",
        "jit(step)/transpose(jvp(MLP))/Dense_0/dot_general",
    )
    work, copies, comms, ranges, calls = [], [], [], [], []
    for step in range(steps):
        at, ids = 10_000 + step * 100_000, 10 * step
        ranges += [
            ("train", at, at + 98_000, {"step_num": step}),
            ("dot.1", at + 5_000, at + 9_000, {}),
            ("dot.2", at + 10_000, at + 14_000, {}),
            ("all-reduce.1", at + 15_000, at + 19_000, {}),
            ("$api.py:3105 block_until_ready", at + 25_000, at + 90_000, {}),
            ("PythonRefManager::CollectGarbage", at + 26_000, at + 26_500, {}),
            ("$array.py:12 block_until_ready", at + 27_000, at + 89_000, {}),
            ("$train.py:5 step", at + 1_000, at + 20_000, {}),
        ]
        for number, (op, path, start, end) in enumerate([
            ("dot.1", forward, at + 10_000, at + 40_000), ("dot.2", backward, at + 41_000, at + 70_000),
            ("all-reduce.1", "jit(step)/psum", at + 71_000, at + 86_000),
        ]):  # fmt: skip
            stats = {"correlation_id": ids + number + 1, "hlo_op": op, "name": path}
            calls.append(("cuLaunchKernel", at + 6_000 + 5_000 * number, at + 8_000 + 5_000 * number, stats))
            details = {"kernel_details": "regs:32 grid:800,20,1 block:128,1,1 occ_pct:50", **stats}
            name = (
                "ncclDevKernel_AllReduce_Sum_f32(x)" if number == 2 else f"ampere_bf16_s16816gemm_{number}.kd"
            )
            (comms if number == 2 else work).append((name, start, end, details))
        for number, call in enumerate(("cuEventRecord", "cuStreamWaitEvent")):  # the other stream waits
            start = at + 14_200 + 400 * number
            calls.append((call, start, start + 300, {"correlation_id": ids + 7 + number}))
        size = "kind_src:pinned kind_dst:device size:4096 dest:0 async:1"
        copies.append(
            ("MemcpyH2D", at + 3_000, at + 4_000, {"correlation_id": ids + 9, "memcpy_details": size})
        )
        calls.append(("cuMemcpyHtoDAsync", at + 1_000, at + 2_000, {"correlation_id": ids + 9}))
    gpu.line("Stream #13(Compute,MemcpyH2D)", 13, sorted(work + copies, key=lambda event: event[1]))
    gpu.line("Stream #20(Compute)", 20, comms)
    gpu.line("XLA Ops", 99, work)  # derived by a viewer: no stream
    if calls_apart:
        host.line("python", 77, ranges)
        host.line("Host Threads/5", 5, calls)
    else:
        host.line("python", 77, sorted(ranges + calls, key=lambda event: event[1]))
    environment = PlaneWriter("Task Environment", profile_start_time=1_700_000_000_000_000_000)
    planes = [PlaneWriter("/host:metadata").done(), gpu.done(), host.done(), environment.done()]
    return b"".join(field(1, plane) for plane in planes) + field(4, "secret-host")


def write(path, content=None):
    path.write_bytes(training() if content is None else content)
    return path
