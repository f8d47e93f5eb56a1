"""Clusters by name (`dgx-a100:4`, four nodes), and those described in a file.

Bandwidths are what NCCL reckons with, not what is printed on the box. Inside a node: the links of
a GPU times NCCL's figure for one link in one direction (SM60_NVLINK_BW 18.0, SM70 20.0, SM80 20.0, SM90
20.6, SM100 40.1, PCI_BW 12.0 for gen 3 x16, twice that a generation; src/graph/topo.h), for AMD RCCL's
(GFX94X_XGMI_WIDTH 48.0). Out of a node: its network cards times NET_BW, 12.0 for each 100 Gbit/s
(same file). Steps: hwLat of the ring with the Simple protocol (src/graph/tuning.cc): NVLink 3.4 us, PCI
5.7 us, network 14.0 us; of A100 and B200 as short all-reduces of 8 GPUs show it (5.7 and 7.0 us;
aiconfigurator's tables of NCCL 2.27). `nvls` is how near a switch that adds up comes to the links' bandwidth.
Links and cards of the machines are those of the makers' data sheets.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from daydream.costs.network.clusters import Cluster
from daydream.costs.network.nccl import Link
from daydream.errors import DaydreamError
from daydream.files.input_files import check_regular
from daydream.text import meant

NVLINK_NS, NETWORK_NS = 3_400, 14_000
NET_BW = 12.0  # GB/s for 100 Gbit/s
SUFFIXES = (".toml", ".json")


@lru_cache
def machines() -> dict[str, dict[str, str]]:
    """Return the rows of `machines.csv` by name: GPUs of a node, links of each and GB/s, and what it is."""
    with (
        Path(__file__)
        .parents[1]
        .joinpath("machines.csv")
        .open(encoding="utf-8", newline="") as file
    ):
        return {row["name"]: row for row in csv.DictReader(file)}


def find_cluster(text: str) -> Cluster:
    """Return a cluster by name or from a file of your own.

    Args:
        text: `dgx-a100`, or `dgx-a100:4`, of 4 nodes; a file: `lab.toml`, `lab.json:2`.

    Raises:
        DaydreamError: there is no such name, or the file describes no cluster.
    """
    name, _, count = text.rpartition(":") if ":" in text else (text, "", "")
    if count and not count.isdigit():
        name, count = text, ""  # a drive letter, or a name with a colon
    if name.endswith(SUFFIXES):
        found = read_cluster(name)
    elif name in machines():
        row = machines()[name]
        source = f"by NCCL's own figures for the description ({row['what']}), not measured"
        intra = Link(int(row["links"]) * float(row["gb_per_s"]), int(row["step_ns"]))
        inter = Link(int(row["gbits"]) / 100 * NET_BW, NETWORK_NS)
        switch, ll128 = float(row["nvls"]), row["ll128"] == "1"
        found = Cluster(name, 1, int(row["gpus"]), intra, inter, source, nvls=switch, ll128=ll128)
    else:
        hint = meant(name, machines(), "There is none like it.")
        raise DaydreamError(
            f"unknown cluster {name!r}. {hint} Known are {', '.join(machines())}; your own is described in a "
            "file ending in .toml or .json."
        )
    return replace(found, nodes=int(count), nodes_given=True) if count else found


def read_cluster(path: str | Path) -> Cluster:
    """Return the cluster a file describes.

    Keys: `gpus_per_node`, `nodes` (1 if absent), `name`, and the tables `intra` (a GPU to its peers)
    and `inter` (a whole node), each with `bandwidth_gb_per_s` and `latency_us`; `inter` may be absent
    where there is one node. Raises `DaydreamError` with what is missing.
    """
    path = Path(path)
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DaydreamError(
            f"cannot read the cluster file {path}: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        raise DaydreamError(f"{path} is not text; a cluster file is TOML or JSON") from None
    try:
        content = json.loads(text) if path.suffix == ".json" else _toml(text)
    except ValueError as error:  # both decoders' errors
        raise DaydreamError(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(content, dict):
        raise DaydreamError(
            f"{path} holds no table; a cluster file has gpus_per_node, intra and inter"
        )
    known = {"name", "nodes", "gpus_per_node", "intra", "inter"}
    if unknown := sorted(set(content) - known):
        raise DaydreamError(
            f"{path} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}"
        )
    nodes = _number(content, "nodes", path, 1)
    gpus = _number(content, "gpus_per_node", path)
    if nodes != int(nodes) or gpus != int(gpus):
        raise DaydreamError(f"{path}: nodes and gpus_per_node are whole numbers")
    intra = _link(content, "intra", path)
    inter = _link(content, "inter", path) if "inter" in content or nodes > 1 else intra
    name = str(content.get("name", path.stem))
    return Cluster(
        name,
        int(nodes),
        int(gpus),
        intra,
        inter,
        f"by the description in {path.name}, not measured",
        nodes_given="nodes" in content,
    )


def _toml(text: str) -> Any:
    for module in ("tomllib", "tomli"):  # tomllib came with Python 3.11; tomli is the same before
        try:
            return import_module(module).loads(text)
        except ModuleNotFoundError:
            continue
    raise DaydreamError(
        "reading TOML needs Python 3.11 or `pip install tomli`; or write the file as JSON"
    )


def _link(content: dict[str, Any], key: str, path: Path) -> Link:
    table = content.get(key)
    if not isinstance(table, dict):
        raise DaydreamError(
            f"{path} has no table {key!r}; give it bandwidth_gb_per_s and latency_us, "
            + ("of a GPU to its peers" if key == "intra" else "of a whole node to the others")
        )
    known = {"bandwidth_gb_per_s", "latency_us"}
    if unknown := sorted(set(table) - known):
        raise DaydreamError(
            f"{path}: {key} has the unknown key {unknown[0]!r}; known are {', '.join(known)}"
        )
    default = NVLINK_NS if key == "intra" else NETWORK_NS
    latency_us = _number(table, "latency_us", path, default / 1e3)
    return Link(_number(table, "bandwidth_gb_per_s", path), latency_us * 1e3)


def _number(table: dict[str, Any], key: str, path: Path, default: float | None = None) -> float:
    value = table.get(key, default)
    if value is None:
        raise DaydreamError(f"{path} does not say {key}; a number is needed")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DaydreamError(f"{path}: {key} is {value!r}; a number is needed")
    return value
