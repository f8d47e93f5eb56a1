"""Tools in two processes of DistributedDataParallel (gloo, on the CPU)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("ddp_training.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("ddp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    files = [folder / f"{rank}.json" for rank in range(2)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), port, str(file)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank, file in enumerate(files)
    ]  # fmt: skip
    said = [each.communicate(timeout=300)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], said
    return [json.loads(file.read_text()) for file in files]


def test_both_ranks_have_the_same_ids_and_actions(ranks):
    first, second = ranks
    assert first["ids"] == second["ids"]
    assert first["actions"] == second["actions"]
    layers = {each.split("/")[1] for each in first["actions"]}
    assert layers == {"0.fc1", "0.act", "0.fc2", "1.fc1", "1.act", "1.fc2", "2"}


def test_losses_are_those_of_a_model_written_by_hand(ranks):
    for each in ranks:
        assert each["with_tools"] == each["by_hand"] != each["plain"]
        assert each["after"] == each["plain"]
    assert ranks[0]["with_tools"][0] != ranks[1]["with_tools"][0]  # other data, so other losses


def test_gradients_are_those_of_all_ranks(ranks):
    assert ranks[0]["with_tools"][1] == ranks[1]["with_tools"][1]
