"""Layers and phases from what JAX calls an operator: `jit(step)/transpose(jvp(MLP))/Dense_0/dot_general`.

JAX writes the transformations and named scopes that an operation was traced in. A backward pass is the
transpose of a derivative (`transpose(jvp(...))`), a forward pass that is differentiated has `jvp(...)` alone.
"""

from __future__ import annotations

from functools import lru_cache

from daydream.lazy import regex

WRAPPED = regex(r"^(jvp|transpose|vmap|pmap|remat|checkpoint|rematted_computation|custom_jvp_call|"
                     r"custom_vjp_call|named)\((.*)\)$")  # fmt: skip
CALLS = regex(r"^(jit|pjit|xla_call|shard_map|pmap|xla_pmap|core_call|closed_call)\(|^(jit|pjit|main)$")
CONTROL = frozenset({
    "while", "body", "cond", "scan", "checkpoint", "remat", "remat2", "rematted_computation", "closed_call",
    "custom_jvp_call", "custom_vjp_call", "pjit", "shard_map",
})  # fmt: skip
BRANCH = regex(r"^branch_\d+_fun$")
EQUATION = "->"  # `jnp.einsum` names a scope after its equation, which is no layer: `bsd,de->bse`


def phase_of(path: str) -> str | None:
    """Return `backward` or `forward` where an operator's path tells, else None."""
    if "transpose(" in path:
        return "backward"
    return "forward" if "jvp(" in path else None


@lru_cache(maxsize=1 << 14)
def layer_of(path: str) -> str | None:
    """Return the named scopes of an operator's path, joined by dots; None if there are none."""
    parts = _split(path)[:-1]  # the last one is the operation itself
    kept = []
    for part in parts:
        inner = part
        while wrapped := WRAPPED.match(inner):
            inner = wrapped.group(2)
        called = CALLS.match(inner) or BRANCH.match(inner) or EQUATION in inner
        if inner and inner not in CONTROL and not called:
            kept.append(inner)
    return ".".join(kept)[:200] or None


def _split(path: str) -> list[str]:
    """Return the parts of a path; slashes in parentheses part nothing."""
    parts = [""]
    depth = 0
    for letter in path:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
