"""Recordings of memory, written by hand as Kineto writes them."""

import json

import daydream


class Recording:
    """Kineto's rows, written in order; every call takes 10 us."""

    def __init__(self, *, device=-1, before=0):
        self.rows, self.now, self.device, self.before = [], 0, device, before
        self.held, self.address = {}, 4096

    def inside(self, name, *changes, kind="cpu_op", **args):
        """A row of 10 us around changes: `("x", 512)` allocates what is called x, `"x"` frees it."""
        self.range(name, self.now, kind=kind, duration=10, **args)
        for place, change in enumerate(changes, 1):
            self.change(change, self.now + place)
        self.now += 10

    def layer(self, name, *changes, op="aten::mm", **args):
        """A call of a layer whose operator makes the changes."""
        at = self.now
        self.inside(op, *changes, **args)
        self.range(f"nn.Module: {name}", at)

    def between(self, *changes):
        """Changes that no row encloses, as Python makes them."""
        for change in changes:
            self.change(change, self.now + 1)
            self.now += 2

    def range(self, name, start, *, kind="user_annotation", duration=None, **args):
        """A range from a time until now."""
        duration = self.now - start if duration is None else duration
        self.rows.append(
            {
                "ph": "X",
                "cat": kind,
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def change(self, change, at):
        """An allocation or a free at a time."""
        if isinstance(change, str):
            address, nbytes = self.held.pop(change)
            nbytes = -nbytes
        else:
            name, nbytes = change
            self.address += 4096
            address = self.address
            self.held[name] = (address, nbytes)
        args = {"Bytes": nbytes, "Addr": address, "Device Type": int(self.device >= 0)}
        args["Device Id"] = self.device
        if self.device >= 0:
            args["Total Allocated"] = self.before + sum(size for _, size in self.held.values())
            args["Total Reserved"] = 2**24
        self.rows.append({"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args})

    def trace(self, folder):
        """The trace, imported."""
        path = folder / "t.json"
        path.write_text(json.dumps({"traceEvents": self.rows}))
        return daydream.load(path)


def training_step(recording, number, *, state=False):
    """Add a step that trains one layer: forward holds 2,120 bytes, its backward pass 8,120 at most."""
    start = recording.now
    cleared = ["g"] if "g" in recording.held else []
    recording.inside("Optimizer.zero_grad#SGD.zero_grad", *cleared, kind="user_annotation")
    recording.inside("aten::randn", ("in", 64))
    recording.layer("a", ("act", 2048), ("tmp", 100), "tmp")
    recording.between(*(["out"] if "out" in recording.held else []))  # that of the step before, a variable
    recording.inside("aten::mse_loss", ("out", 8))
    recording.inside("autograd::engine::evaluate_function: MmBackward0", ("g", 4000), ("d", 2000), "act", "d")
    at = recording.now
    recording.inside("aten::add_", *([("m", 4000)] if state else []), ("u", 30), "u")
    recording.range("Optimizer.step#SGD.step", at)
    recording.between("in")
    recording.range(f"ProfilerStep#{number}", start)


PARAMETER = {
    "name": "a.weight", "layer": "a", "shape": [1000], "dtype": "float32", "device": "cpu",
    "requires_grad": True, "gradient_bytes": 4000,
}  # fmt: skip
SGD = {
    "name": "SGD", "state_bytes": 4000,
    "groups": [{"settings": {}, "tensors": 1, "elements": 1000, "parameters": ["a.weight"]}],
}  # fmt: skip
