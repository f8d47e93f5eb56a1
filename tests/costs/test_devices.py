"""The table of GPUs: what names mean, and what cannot be in it."""

import pytest

from daydream import NotApplicableError, Trace
from daydream.costs import find_device
from daydream.costs.network.networks import machine_of
from daydream.graph.build import build

DRIVER_NAMES = {
    "Tesla V100-SXM2-16GB": "V100 SXM2", "Tesla V100-SXM2-32GB": "V100 SXM2",
    "Tesla V100-DGXS-32GB": "V100 SXM2",
    "Tesla V100-PCIE-16GB": "V100 PCIe", "Tesla T4": "T4", "NVIDIA A100-SXM4-80GB": "A100 SXM 80GB",
    "NVIDIA A100-SXM4-40GB": "A100 SXM 40GB", "NVIDIA A100-PCIE-40GB": "A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "A100 PCIe 80GB", "NVIDIA A10": "A10", "NVIDIA A10G": "A10G", "NVIDIA L4": "L4",
    "NVIDIA L40S": "L40S", "NVIDIA H100 80GB HBM3": "H100 SXM", "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H200": "H200", "NVIDIA B200": "B200", "AMD Instinct MI300X": "MI300X",
    "AMD Instinct MI300X VF": "MI300X", "AMD Instinct MI350X": "MI350X", "AMD Instinct MI355X": "MI355X",
    "AMD Instinct MI250X": "MI250X (one die)", "AMD Instinct MI210": "MI210",
    "NVIDIA GeForce RTX 2080 Ti": "RTX 2080 Ti", "NVIDIA GeForce RTX 3070 Ti": "RTX 3070 Ti",
    "NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA RTX A6000": "RTX A6000",
    "Quadro GP100": "Quadro GP100",
}  # fmt: skip


@pytest.mark.parametrize("name", DRIVER_NAMES)
def test_a_drivers_name_finds_its_device(name):
    assert find_device(name).name == DRIVER_NAMES[name]


@pytest.mark.parametrize("name", ["", "abacus", "RTX", "AMD Radeon Graphics", "NVIDIA"])
def test_an_unknown_gpu_is_an_error_that_lists_the_known_ones(name):
    with pytest.raises(NotApplicableError, match="H100 SXM"):
        find_device(name)


# Which machine a GPU stands in, by its form factor, where no network is named


def on(name):
    return build(Trace({}, {}, {"devices": [{"id": 0, "name": name}], "steps": []}))


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("NVIDIA H200", "dgx-h100"),
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("NVIDIA H100 PCIe", "pcie5"),
        ("NVIDIA A100-SXM4-40GB", "dgx-a100"),
        ("NVIDIA A100-PCIE-40GB", "pcie4"),
        ("NVIDIA A100 80GB PCIe", "pcie4"),
        ("Tesla V100-SXM2-16GB", "dgx-v100"),
        ("Tesla V100-PCIE-32GB", "pcie3"),
        ("Tesla P100-SXM2-16GB", "dgx-p100"),
        ("Tesla P100-PCIE-16GB", "pcie3"),
        ("AMD Instinct MI325X", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 2080 Ti", "pcie3"),
    ],
)
def test_the_form_factor_of_a_board_decides_its_machine(name, machine):
    assert machine_of(on(name)) == machine


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "AMD Instinct MI250X", "NVIDIA Imaginary 9000", ""])
def test_where_no_machine_is_usual_it_says_what_to_give(name):
    with pytest.raises(NotApplicableError, match=r"not known.*--cluster or --bandwidth"):
        machine_of(on(name))


def test_a_superchip_is_not_taken_for_the_board_whose_name_its_own_contains():
    assert find_device("NVIDIA GH200 480GB").name == "GH200 96GB"
    assert find_device("NVIDIA GH200 144G HBM3e").name == "GH200 144GB"
    assert find_device("NVIDIA H200").name == "H200"


# Each number of costs, model and calibration has an origin, and none judges itself
