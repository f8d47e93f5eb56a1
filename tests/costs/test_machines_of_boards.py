"""Which machine a GPU stands in, by its form factor, where no network is named."""

from __future__ import annotations

import pytest

from daydream import Graph, NotApplicableError, Trace
from daydream.costs.devices import DEVICES, find_device
from daydream.costs.network.cluster_names import MACHINES, find_cluster
from daydream.costs.network.networks import MACHINE_OF, machine_of
from daydream.graph.build import build


def on(name: str) -> Graph:
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


def test_the_links_of_a_machine_are_those_of_its_boards():
    # What NCCL reckons with is 70 to 100 % of what is printed: of half the links' sum, or of PCIe.
    by_name = {device.name: device for device in DEVICES}
    assert set(MACHINE_OF) <= set(by_name)
    assert set(MACHINE_OF.values()) <= set(MACHINES)
    for name, machine in MACHINE_OF.items():
        device = by_name[name]
        printed = device.pcie if machine.startswith("pcie") else (device.link or 0) / 2
        assert 0.7 * printed <= find_cluster(machine).intra.bandwidth <= printed, name
