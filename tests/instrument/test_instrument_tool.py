"""What a tool may be, in which order tools run, and what is said of a mistake."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from small_training import X, model, on, tool, train  # noqa: E402

from daydream.instrument import InstrumentError, Tool, apply  # noqa: E402


def test_what_is_depended_on_runs_first_and_adds_to_the_context():
    order = []
    low = on("gelu", lambda op: (order.append("low"), op.update(mask=7)))
    middle = on(
        "gelu", lambda op: (order.append("middle"), op.insert_after_op(lambda y: order.append("middle's")))
    )
    high = on(
        "gelu", lambda op: (order.append(op["mask"]), op.insert_after_op(lambda y: order.append("high's")))
    )
    high.depends_on(middle, low)
    middle.depends_on(low)

    with apply(high, low):
        torch.nn.functional.gelu(X)
    assert order == ["low", "middle", 7, "middle's", "high's"]


def test_a_circle_of_tools_is_an_error_before_anything_is_installed():
    class First(Tool):
        pass

    class Second(Tool):
        pass

    first, second = First(), Second()
    called = []
    first.add_inst_for_op(called.append)
    first.depends_on(second)
    second.depends_on(first)

    with pytest.raises(InstrumentError, match="First -> Second -> First"), apply(first):
        pass
    torch.relu(X)
    assert called == []
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda op: op.insert_before_op(torch.relu, inputs=[9]), "place 9"),
        (lambda op: op.get_outputs(), "require_outputs=True"),
        (lambda op: op.get_backward_op(), "require_outputs=True"),
        (lambda op: [op.replace_op(torch.relu) for _ in range(2)], "replaced already"),
        (lambda op: op.insert_before_op(lambda x: x[:1]), "grad=True"),
        (lambda op: op.insert_before_op(lambda *_: (1, 2, 3), inputs=[0, 1]), "2 values"),
    ],
)
def test_mistakes_are_said_in_a_line(wrong, said):
    with pytest.raises(InstrumentError, match=said) as error, apply(on("gelu", wrong)):
        torch.nn.functional.gelu(X.clone().requires_grad_())
    assert len(str(error.value).splitlines()) == 1


def test_a_tool_keeps_no_tensor_alive():
    contexts = []
    with apply(tool(contexts.append), tool(contexts.append, backward=True)):
        train(model(), 2)
    assert contexts
    with pytest.raises(InstrumentError):
        contexts[0].get_inputs()
    assert not any(each._held for each in contexts)
