"""Each operator with its layer, its shapes, its FLOP and its bytes."""

from __future__ import annotations

from typing import Any

from daydream.instrument.actions import tensors_in
from daydream.instrument.context import OpContext
from daydream.instrument.kinds import kind_of
from daydream.instrument.tool import Tool


class Tracing(Tool):
    """Notes each operator once: `rows`, a list of mappings in the order in which they ran.

    `flop` is None where torch has no formula for the operator, `bytes` the size of all tensors in and out.
    Operators made of others are left out, as what they call is there.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        for backward in (False, True):
            self.add_inst_for_op(self._note, backward=backward, require_outputs=True)

    def _note(self, op: OpContext) -> None:
        if op["composite"] or op["namespace"] == "autograd":
            return
        from torch.utils.flop_counter import flop_registry

        inputs, outputs = op.get_inputs(), op.get_outputs()
        count: Any = flop_registry.get(op["op"].overloadpacket)
        made = outputs[0] if len(outputs) == 1 else outputs
        args, kwargs = kind_of(op["op"]).split(list(inputs))
        flop = None if count is None else int(count(*args, **kwargs, out_val=made))
        tensors = [*tensors_in(inputs), *tensors_in(outputs)]
        self.rows.append(
            {
                "op_id": op["op_id"],
                "type": op["type"],
                "layer": op["layer"],
                "phase": op["phase"],
                "flop": flop,
                "bytes": sum(each.numel() * each.element_size() for each in tensors),
                "shapes": [tuple(each.shape) for each in tensors_in(inputs)],
            }
        )
