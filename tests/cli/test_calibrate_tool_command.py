"""`daydream calibrate --tool` as people run it: a real script that trains, a tool from a file."""

import json

import pytest
from command_line import process

from daydream.costs.device.measured import KernelTable

pytest.importorskip("torch")

TRAIN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(64, 64)
for _ in range(400):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print("trained to the end")
"""
CHANGE = """
from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import Tool

def change(graph: Graph) -> None:
    \"\"\"Replace an operator, as measured in place.\"\"\"
    replace_cost(graph, graph.select(op=r"^aten::gelu(_backward)?$"))

def look(op):
    if op["type"] == "TYPE":
        import torch
        op.replace_op(torch.relu, inputs=[0], grad=True)

tool = Tool()
tool.add_inst_for_op(look)
"""
NO_TOOL = "def change(graph):\n    '''Nothing.'''\n    graph.select().scale(1.5)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def calibrate(folder, text):
    (folder / "change.py").write_text(text)
    return process(
        "calibrate --tool ./change.py -o times.parquet --json --steps 2 train.py",
        folder=folder,
    )  # fmt: skip


def test_it_times_what_the_tool_changes_before_and_with_it(folder):
    done = calibrate(folder, CHANGE.replace("TYPE", "gelu"))
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert (said["schema"], said["tool"], said["device"]) == (1, "./change.py", "cpu")
    assert {(row["op"], row["phase"]) for row in said["measured"]} == {
        ("aten::gelu", "forward"),
        ("aten::gelu", "backward"),
    }
    assert all(row["before_ns"] > 0 and row["duration_ns"] > 0 for row in said["measured"])
    assert said["drift"] > 0
    assert "trained to the end" not in done.out + done.err  # the script ends when it is timed
    table = KernelTable.load(folder / "times.parquet")
    assert [key[0] for key in table.in_place] == ["gelu"]


def test_a_file_without_a_tool_is_a_mistake_of_usage(folder):
    done = calibrate(folder, NO_TOOL)
    assert done.code == 2
    assert "has no tool" in done.err
