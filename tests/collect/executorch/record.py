"""Records the files beside it: a small network run by ExecuTorch, by portable kernels and by XNNPACK.

    pip install executorch==1.5.1 pyarrow
    python tests/collect/executorch/record.py

For each back end the ETDump of six runs, its ETRecord and Inspector's table of both. In the records and
tables, paths of source files begin at the package or are names only; nothing else is changed.
"""

import re
import zipfile
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.devtools import Inspector
from executorch.exir import to_edge_transform_and_lower
from executorch.extension.pybindings import portable_lib
from torch import nn

HERE = Path(__file__).parent
RUNS = 6
FOLDERS = re.compile(rb'(File \\*")[^"\\]*?/(?:site-packages/)?((?:torch/[^"\\]*|[^"\\/]+)\.py)')


class Block(nn.Module):
    """A convolution as networks have them."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x):
        """Return the channels of the images."""
        return torch.relu(self.norm(self.conv(x)))


class Model(nn.Module):
    """A block, and two linear layers behind it."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.fc1 = nn.Linear(16, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        """Return ten numbers an image."""
        x = self.block(x).mean((2, 3))
        return self.fc2(torch.relu(self.fc1(x)))


def record(name, partitioners):
    """Write NAME.etdp, NAME.etrecord, NAME.json, and NAME.parquet where pyarrow can."""
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 16, 16),)
    exported = torch.export.export(Model().eval(), inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=partitioners, generate_etrecord=True)
    program = edge.to_executorch()
    dump, kept = HERE / f"{name}.etdp", HERE / f"{name}.etrecord"
    program.get_etrecord().save(str(kept))
    module = portable_lib._load_for_executorch_from_buffer(program.buffer, enable_etdump=True)
    for _ in range(RUNS):
        module.forward(inputs)
    module.write_etdump_result_to_file(str(dump))
    shorten(kept)
    table = Inspector(etdump_path=str(dump), etrecord=str(kept)).to_dataframe()
    table.to_json(HERE / f"{name}.json", orient="records")
    table["op_types"] = table["op_types"].map(
        lambda ops: ops if isinstance(ops, list) else [ops]
    )  # else refused
    table.to_parquet(HERE / f"{name}.parquet", compression="zstd")


def shorten(path):
    """Pack an ETRecord, and shorten the paths in it."""
    with zipfile.ZipFile(path) as record:
        files = {each.filename: record.read(each) for each in record.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as record:
        for name, content in files.items():
            whole = FOLDERS.sub(rb"\1\2", content) if content[:1] == b"{" else content
            record.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), whole, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    record("portable", [])
    record("xnnpack", [XnnpackPartitioner()])
