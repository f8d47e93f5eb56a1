"""Tools of pruning, quantize, rematerialize and replace: a running model beside one written by hand."""

import pytest

from daydream.errors import DaydreamError
from daydream.instrument import apply
from daydream.instrument.tool import tools_of
from daydream.transforms.real_change import real_change
from daydream.transforms.registry import find, path_or_name

torch = pytest.importorskip("torch")
functional = torch.nn.functional


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.norm(functional.gelu(self.up(x))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


X = torch.linspace(-2, 2, 40).reshape(5, 8)


def losses(model, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def changed(name, model, steps=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with real_change([name], options, [optimizer]) as operators:
        found = losses(model, steps)
    return found, operators()


def by_hand(model, forward):
    model.forward = forward
    return losses(model)


def copy_of(model):
    twin = Model()
    twin.load_state_dict(model.state_dict())
    return twin


def two_of_four(weight):
    fours = weight.detach().abs().reshape(-1, 4)
    mask = torch.zeros_like(fours).scatter_(1, fours.topk(2, dim=1).indices, 1.0)
    return mask.reshape(weight.shape)


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, changed):
        return changed

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_pruned_weights_are_those_of_a_masked_model(model):
    twin = copy_of(model)
    masks = [two_of_four(each.weight) for each in (twin.up, twin.down)]
    assert all((mask.reshape(-1, 4).sum(1) == 2).all() for mask in masks)

    def forward(x):
        up, down = (
            StraightThrough.apply(each.weight, each.weight.detach() * mask)
            for each, mask in zip((twin.up, twin.down), masks, strict=True)
        )
        x = functional.gelu(functional.linear(x, up, twin.up.bias))
        return functional.linear(twin.norm(x), down, twin.down.bias)

    found, operators = changed("pruning", model)
    assert found == by_hand(twin, forward)
    assert operators == ["aten::linear"]


def test_a_fraction_of_the_smallest_weights_of_one_layer_is_zero(model):
    with apply(*tools_of(find("pruning").tool, "pruning", {"sparsity": "0.75", "layer": "up"})) as session:
        model(X)
    ordered = {key: one.actions.before for key, one in session.contexts.items() if one.actions.before}
    assert list(ordered) == ["forward/up/aten::linear/0"]
    mask = ordered["forward/up/aten::linear/0"][0].kwargs["mask"]
    assert mask.sum() == model.up.weight.numel() / 4
    sizes = model.up.weight.detach().abs()
    assert sizes[mask].min() >= sizes[~mask].max()


def test_rounded_operands_are_those_of_fake_quantization_by_hand(model):
    twin = copy_of(model)

    def rounded(value):
        scale = max(float(value.detach().abs().max()) / 127, 1e-12)
        with torch.no_grad():
            there = torch.fake_quantize_per_tensor_affine(value, scale, 0, -128, 127)
        return StraightThrough.apply(value, there)

    def linear(layer, x):
        return functional.linear(rounded(x), rounded(layer.weight), layer.bias)

    found, _ = changed("quantize", model)
    assert found == by_hand(twin, lambda x: linear(twin.down, twin.norm(functional.gelu(linear(twin.up, x)))))


@pytest.mark.parametrize("options", [{}, {"op": "^aten::gelu$"}])
def test_what_is_computed_again_changes_no_number(model, options):
    twin = copy_of(model)
    found, operators = changed("rematerialize", model, **options)
    assert found == losses(twin)
    assert "aten::gelu" in operators


def test_a_replaced_activation_and_norm_are_differentiated(model):
    first, second = copy_of(model), copy_of(model)
    found, _ = changed("replace", copy_of(model), op="^aten::gelu$", by="relu")
    assert found == by_hand(first, lambda x: first.down(first.norm(functional.relu(first.up(x)))))
    found, operators = changed("replace", model, op="^aten::layer_norm$", by="rms_norm")
    assert operators == ["aten::layer_norm"]

    def normed(x):
        return second.down(functional.rms_norm(functional.gelu(second.up(x)), (16,), second.norm.weight))

    assert found == by_hand(second, normed)


def test_leaving_puts_everything_back(model):
    twin = copy_of(model)
    changed("quantize", model)
    model.load_state_dict(twin.state_dict())
    assert losses(model) == losses(twin)


OWN = """
from daydream import Graph

def own(graph: Graph, *, factor: float = 2.0) -> None:
    graph.select().scale(factor)

{tool}
"""


@pytest.mark.parametrize(
    ("tool", "fails"),
    [
        ("from daydream.instrument import Tool\ntool = Tool()", None),
        ("from daydream.instrument import Tool\ntool = Tool", None),
        ("from daydream.instrument import Tool\ndef tool(*, factor): return [Tool(), Tool()]", None),
        ("tool = 3", "must be a daydream.instrument.Tool"),
        ("def tool(): return None", "must be a daydream.instrument.Tool"),
        ("tool = []", "must be a daydream.instrument.Tool"),
    ],
)
def test_a_file_holds_a_tool_or_what_makes_one(tmp_path, tool, fails):
    file = tmp_path / "own.py"
    file.write_text(OWN.format(tool=tool))
    found = find(str(file))
    assert found.can_be_made
    assert path_or_name(found) == str(file)
    if fails is None:
        assert tools_of(found.tool, found.name, {"factor": 2.0})
    else:
        with pytest.raises(DaydreamError, match=fails):
            tools_of(found.tool, found.name, {"factor": 2.0})
