"""Which operators the name that Inductor gives a kernel tells of; layers, it does not tell."""

from __future__ import annotations

from daydream.lazy import regex

FUSED = regex(r"(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_(\w+?)(?:_\d+)?(?::\d+)?")
PLACE = regex(r":\d+$")


def operators_of_kernel(name: str) -> list[str]:
    """Return the operators in a kernel's name, sorted, as the compiler writes them; at least one.

    `triton_poi_fused_add_relu_3` is `add_relu`, as names of operators may hold underscores themselves;
    `extern_kernels.mm:4` is `aten::mm`.
    """
    fused = FUSED.fullmatch(name)
    if fused:
        return [fused.group(1)]
    plain = PLACE.sub("", name)
    parts = plain.removeprefix("torch.ops.").split(".")
    if parts[0] == "extern_kernels" and len(parts) > 1:
        return [f"aten::{parts[1].removeprefix('bias_')}"]
    return [f"{parts[0]}::{parts[1]}" if len(parts) > 1 else plain]
