"""The optimizations that ship: one in a file of its name, or several in one file."""

#: Those in a file of another name, where `COMMANDS` has what is not the same for all of the file.
OF_SEVERAL = {
    "amp": "autocast",
    "dgc": "compression",
    "fused-adam": "fused_optimizer",
    "fused-bias-act": "_fused_chains",
    "fused-cross-entropy": "_fused_chains",
    "fused-norm": "_fused_chains",
    "fused-softmax": "_fused_chains",
    "gist": "_offload",
    "offload-optimizer": "_offload",
    "rematerialize": "checkpointing",
    "sequence-length": "batch_size",
    "tictac": "p3",
    "vdnn": "_offload",
}
