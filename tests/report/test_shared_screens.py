"""What people see of public traces of different kinds: each command's screen as a file to read.

After a change that is meant, write them again with `DAYDREAM_GOLDEN=write pytest
tests/report/test_shared_screens.py` and read the difference.
What optimizations predict is left out but for `scale`: it changes with each that gets better.
"""

import re
from functools import partial
from pathlib import Path

import pytest
from cli.command_line import held_to
from shared import shared_replay, view_text

import daydream
from daydream.predict import curves as predicted
from daydream.report.info import info_of
from daydream.report.text import text_of
from daydream.report.views.ranking import curve_table

GOLDEN = Path(__file__).parent.parent / "golden" / "shared"
TRACES = {
    "cpu_bound": "kineto/a100_resnet_ddp_rank0of2.json.gz",
    "gpu_bound": "kineto/v100_recsys_rank1of2_copy_waits.json.gz",
    "loader": "kineto/v100_resnet50_loader_workers_0.json.gz",
    "rocm": "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz",
    "four_ranks": "kineto/v100_dlrm_4_of_8_ranks",
    "launch_bound": "kineto/h100_bert_small_inference.json.gz",
    "cpu_only": "odd/cpu_only.json.gz",
}


def info(replay):
    return view_text(info_of(replay.graph.trace, replay.graph, replay))


def whatif(replay, **how):
    on = "gpu" if info_of(replay.graph.trace, replay.graph, replay).on_device else "cpu"
    return view_text(daydream.whatif(replay, "scale", on=on, factor=0.5), **how)


def rank(replay):
    return text_of([curve_table(list(predicted.curves(replay))[:10])])


def compare(replay):
    return view_text(daydream.compare(daydream.whatif(replay, "scale", on="cpu", factor=0.8), replay))


def explain(replay):
    # What could be saved is left out: it changes with every optimization that gets better.
    whole = view_text(daydream.explain(replay), verbose=True)
    screen = re.split(r"\n(?:large but not worth|notes)", whole)[0].rstrip()
    return re.sub(r"biggest avoidable costs.*?\n\n", "", screen, flags=re.DOTALL)


SCREENS = {
    "info": info,
    "replay": view_text,
    "replay_verbose": partial(view_text, verbose=True),
    "whatif": whatif,
    "whatif_verbose": partial(whatif, verbose=True),
    "rank": rank,
    "compare": compare,
    "explain": explain,
}


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("kind", TRACES)
def test_the_screen_is_as_reviewed(kind, screen):
    held_to(f"shared/{kind}_{screen}.txt", SCREENS[screen](shared_replay(TRACES[kind])) + "\n")


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_the_screen_is_plain_and_fits_a_terminal(golden):
    lines = golden.read_text(encoding="utf-8").splitlines()

    assert "".join(lines).isascii()
    assert max(map(len, lines[1:])) <= 100
    assert len(lines[0]) <= 125  # a headline is one line
    assert len(lines) <= 60
    assert not any(line != line.rstrip() or "None" in line for line in lines)
