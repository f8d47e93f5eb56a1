"""The tables of lines of code are what is counted, and what stands there as done by hand does the same."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "validation"))

import by_hand  # noqa: E402
import page  # noqa: E402
import parts  # noqa: E402
from small_training import model, train  # noqa: E402

from daydream.instrument import apply, tools  # noqa: E402


def test_the_table_is_what_is_counted():
    ((name, rows),) = parts.instrument_lines(None)
    assert rows == page.read(page.ROWS, name)


@pytest.mark.parametrize(
    ("change", "tool"),
    [
        (by_hand.pruning, lambda: tools.Pruning("2:4")),
        (by_hand.quantization, tools.FakeQuantization),
        (by_hand.rematerialization, lambda: tools.Rematerialization("gelu")),
        (by_hand.replacing, lambda: tools.Replacing("gelu", torch.relu)),
    ],
)
def test_by_hand_has_the_losses_of_the_tool(change, tool):
    net = model()
    change(net)
    with apply(tool()):
        found = train(model())
    assert found == train(net)


def test_statistics_by_hand_are_those_of_the_tool():
    net, found = model(), tools.ActivationStatistics("gelu")
    kept = by_hand.statistics(net)
    train(net)
    with apply(found):
        train(model())
    assert list(found.values.values()) == [kept[f"{block}.act"] for block in range(2)]
