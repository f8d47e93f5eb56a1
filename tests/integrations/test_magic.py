"""`%load_ext daydream` and `%%daydream`, in a notebook that a kernel of its own runs."""

import pytest
from notebooks import execute, nbformat

torch = pytest.importorskip("torch", reason="records real training")

pytestmark = pytest.mark.slow
MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
data, labels = torch.randn(16, 32), torch.randint(10, (16,))
"""
LOOP = """
for step in range({steps}):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data), labels)
    loss.backward()
    optimizer.step()
"""
CELLS = [
    "%load_ext daydream",
    MODEL,
    "%%daydream fused-adam -o t.parquet" + LOOP.format(steps=60),
    "print('loss', loss.item(), step)",
    "import daydream\nprint(abs(daydream.replay('t.parquet').error) < 0.02)",
    "daydream.whatif('t.parquet', 'fused-adam').interactive()",
    "%%daydream\n" + LOOP.format(steps=60),
    "%%daydream\n" + LOOP.format(steps=2),
    "%%daydream --what\nraise SystemError",
    "%%daydream\nraise ValueError('of the cell')",
]
PLAIN = [MODEL, LOOP.format(steps=60), "print('loss', loss.item(), step)"]


def run(cells, folder):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    done = execute(notebook, folder, allow_errors=True, DAYDREAM_CACHE="off")
    return [cell.outputs for cell in done]


def printed(outputs, name="stdout"):
    return "".join(each.text for each in outputs if each.output_type == "stream" and each.name == name)


def shown(outputs):
    (data,) = (each.data for each in outputs if each.output_type == "execute_result")
    return data


def test_a_cell_is_recorded_and_trains_as_without(tmp_path):
    _, _, predicted, loss, good, frame, ranked, few, wrong, failed = run(CELLS, tmp_path)

    assert shown(predicted)["text/plain"].startswith("<Prediction fused-adam: ")
    assert printed(loss) == printed(run(PLAIN, tmp_path)[-1])
    assert printed(good) == "True\n"
    assert shown(frame)["text/html"].startswith('<iframe sandbox="allow-scripts"')
    assert "fused-adam" in shown(ranked)["text/html"]
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == ["t.parquet"]
    assert printed(few, "stderr").startswith("daydream: ")
    assert "Its options are: " in printed(wrong, "stderr")
    assert [each.ename for each in failed if each.output_type == "error"] == ["ValueError"]
