"""Stages: in which order the optimizations of `a+b` are applied.

A file says where it belongs with `STAGE = stages.PRECISION`. What changes which work is
done comes before what changes how fast it is done, and what depends on the hardware comes
last: so `amp+batch-size` and `batch-size+amp` ask the same question.

| stage | what belongs there |
|---|---|
| `WORK` | what is computed: batch and sequence length, layers, checkpointing, another algorithm |
| `PRECISION` | element types: autocast, TF32, fp8 |
| `FUSION` | the same arithmetic in fewer kernels: fused optimizers, norms, compiled chains |
| `KERNELS` | the same kernels, better written |
| `MEMORY` | where data lives: offload, prefetch, compression of activations |
| `LAUNCH` | how the CPU drives the device: CUDA graphs, removed synchronizations |
| `INPUT` | loading and copying data in |
| `PARALLEL` | spreading the work over several GPUs: what then has to be communicated |
| `COMMUNICATION` | collectives, their cost and order |
| `HARDWARE` | another GPU, CPU, link or network |
| `OWN` | functions and files that name no stage, in the order they were given |
"""

from __future__ import annotations

WORK, PRECISION, FUSION, KERNELS, MEMORY, LAUNCH, INPUT, PARALLEL, COMMUNICATION, HARDWARE, OWN = (
    range(11)
)

TITLES = {
    WORK: "what is computed",
    PRECISION: "precision",
    FUSION: "fewer kernels",
    KERNELS: "better kernels",
    MEMORY: "memory",
    LAUNCH: "launches and synchronization",
    INPUT: "input",
    PARALLEL: "several GPUs",
    COMMUNICATION: "communication",
    HARDWARE: "hardware, and anything by a factor",
    OWN: "your own, and other packages'",
}

NEEDS = {
    HARDWARE: "other hardware",
    WORK: "another workload",
    KERNELS: "other kernels",
    PARALLEL: "more GPUs",
}  # what else it takes than a change of code

OWN_FILE = "daydream_user_"  # begins the module name of a user's own file
