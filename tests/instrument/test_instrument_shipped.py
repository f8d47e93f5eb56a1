"""The tools that ship, each against numbers worked out by hand or a model written by hand."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from small_training import model, straight_through, train, with_activation, with_weights  # noqa: E402
from torch import nn  # noqa: E402

from daydream.instrument import InstrumentError, apply, tools  # noqa: E402

PLAIN = train(model())


def linear(weight):
    made = nn.Linear(len(weight[0]), len(weight), bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weight))
    return made


def test_tracing_counts_flop_and_bytes():
    tracing = tools.Tracing()
    with apply(tracing):
        train(model(), 2)
    row = next(each for each in tracing.rows if each["op_id"] == "forward/0.fc1/aten::addmm/0")
    assert row["flop"] == 2 * 4 * 8 * 16
    assert row["bytes"] == 4 * (16 + 4 * 8 + 8 * 16 + 4 * 16)
    backward = [each["flop"] for each in tracing.rows if each["layer"] == "0.fc1" and each["type"] == "mm"]
    assert backward == [2 * 4 * 8 * 16] * 2
    assert {each["phase"] for each in tracing.rows} == {"forward", "backward", "optimizer"}
    assert len({each["op_id"] for each in tracing.rows}) == len(tracing.rows)


def test_sparsity_counts_zeros_of_weights_and_outputs():
    net = nn.Sequential(linear([[1.0, 0.0], [0.0, 0.0]]), nn.ReLU())
    found = tools.Sparsity()
    with apply(found):
        net(torch.tensor([[1.0, 5.0]]))
        net(torch.tensor([[-1.0, 5.0]]))
    shares = found.shares
    assert shares["forward/0/aten::linear/0", "weight"] == 0.75
    assert shares["forward/0/aten::linear/0", "output"] == 0.5
    assert shares["forward/1/aten::relu/0", "output"] == 0.75


def test_masks_keep_the_largest():
    weight = torch.tensor([[4.0, -3.0, 2.0, 1.0], [1.0, 1.0, 1.0, -9.0]])
    assert tools.mask_of(weight, "2:4").int().tolist() == [[1, 1, 0, 0], [1, 0, 0, 1]]
    assert tools.mask_of(weight, 0.5).int().tolist() == [[1, 1, 1, 0], [0, 0, 0, 1]]
    with pytest.raises(InstrumentError, match="multiple of 4"):
        tools.mask_of(torch.ones(2, 3), "2:4")
    with pytest.raises(InstrumentError, match="share from 0"):
        tools.Pruning(1.5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sparsity", [0.5, "2:4"])
def test_pruning_is_a_masked_model(sparsity, dynamic):
    class Masked(nn.Linear):
        mask = None

        def forward(self, x):
            if self.mask is None or dynamic:
                self.mask = tools.mask_of(self.weight.detach(), sparsity)
            weight = self.weight + (self.weight * self.mask - self.weight).detach()
            return F.linear(x, weight * self.mask + (weight - weight * self.mask).detach() * 0, self.bias)

    with apply(tools.Pruning(sparsity, dynamic=dynamic)):
        got = train(model(), 1)
    by_hand = model()
    for each in by_hand.modules():
        if type(each) is nn.Linear:
            each.__class__ = Masked
    assert got == train(by_hand, 1) != PLAIN[:1]


def test_quantization_in_training_is_straight_through():
    rounded = straight_through(lambda x: tools.rounded(x, 4))
    with apply(tools.FakeQuantization(4)):
        got = train(model())
    assert got == train(with_weights(rounded, rounded)) != PLAIN


def test_quantization_after_training_keeps_the_scale_of_the_first_call():
    net = linear([[127.0]])
    with apply(tools.FakeQuantization(8, training=False)), torch.no_grad():
        assert net(torch.tensor([[127.0]])).item() == 127.0 * 127.0
        assert net(torch.tensor([[1.4]])).item() == 127.0
        assert net(torch.tensor([[900.0]])).item() == 127.0 * 127.0


def test_statistics_of_activations():
    found = tools.ActivationStatistics("relu")
    with apply(found):
        F.relu(torch.tensor([-1.0, 4.0]))
        nn.ReLU()(torch.tensor([-1.0, 8.0]))
        F.relu(torch.tensor([2.0, 2.0]))
    first = found.values["forward//aten::relu/0"]
    assert first == {"calls": 1, "mean": 2.0, "max_abs": 4.0, "finite": True}
    assert sum(each["calls"] for each in found.values.values()) == 3


def test_rematerialization_computes_again_and_changes_no_number():
    again = tools.Rematerialization("gelu")
    with apply(again):
        assert train(model()) == PLAIN
    assert again.recomputed == 2 * 2 * 4  # blocks, forward and again, steps


def test_replacing_an_activation_and_a_norm():
    with apply(tools.Replacing("gelu", torch.relu)):
        assert train(model()) == train(with_activation(nn.ReLU)) != PLAIN
    with apply(tools.Replacing("layer_norm", lambda x, weight: F.rms_norm(x, (8,), weight), inputs=(0, 2))):
        got = train(model())
    by_hand = model()
    for block in by_hand[:2]:
        weight = block.norm.weight
        block.norm = nn.RMSNorm(8, eps=None)
        block.norm.weight = weight
    assert got == train(by_hand) != PLAIN


def test_the_effective_path_of_two_layers():
    net = nn.Sequential(linear([[1.0, 0.0, 0.0], [0.0, 5.0, 1.0]]), nn.ReLU(), linear([[1.0, 10.0]]))
    found = tools.EffectivePath(0.5)
    with apply(found):
        net(torch.ones(1, 3))
    assert found.path(0) == {"forward/2/aten::linear/0": [1], "forward/0/aten::linear/0": [1]}


def test_one_name_across_libraries():
    @torch.library.custom_op("daydream_test::dense", mutates_args=())
    def dense(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:  # torch reads the types
        return x @ weight.T

    mapping = tools.Mapping({"daydream_test::dense": ("linear", 0, 1)})
    found = tools.Sparsity(mapping)
    weight = torch.tensor([[0.0, 1.0]])
    with apply(found):
        dense(torch.ones(1, 2), weight)
        F.linear(torch.ones(1, 2), weight)
        torch.ops.aten.linear(torch.ones(1, 2), weight)
    weights = {key[0]: share for key, share in found.shares.items() if key[1] == "weight"}
    assert weights == {
        "forward//daydream_test::dense/0": 0.5,
        "forward//aten::linear/0": 0.5,
        "forward//aten::linear/1": 0.5,
    }
