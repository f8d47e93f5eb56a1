"""Which blocks to checkpoint: the cheapest set that fits, against all sets there are."""

from itertools import combinations, product

import numpy as np
import pytest
from cli.command_line import daydream as typed
from shared import EXAMPLES, ROOT, view_text

import daydream
from daydream import NotApplicableError
from daydream.plan.checkpointing import cheapest, choose_blocks

FOLDER = ROOT / "validation" / "memory_peaks"
BLOCKS = [f"blocks.{number}" for number in range(4)]


@pytest.fixture(scope="module")
def replay():
    """A mixer of four blocks, recorded on a CPU; its step holds 12.3 MB at most."""
    return daydream.replay(FOLDER / "Mixer.parquet")


@pytest.fixture(scope="module")
def h200():
    """A GPT of six blocks on an H200."""
    return daydream.replay(EXAMPLES / "train_gpt_h200.parquet")


def enumerated(cost, saved, excess, groups):
    """Return the least cost of all sets that save enough; None if none does."""
    sets = np.array([*product([False, True], repeat=len(cost))])
    for group in set(groups):
        mine = [number for number, of in enumerate(groups) if of == group]
        sets = sets[sets[:, mine].sum(axis=1) <= 1]
    fits = (sets @ saved >= excess).all(axis=1)
    return min((sets @ cost)[fits], default=None)


@pytest.mark.parametrize("seed", range(100))
def test_no_other_set_is_cheaper(seed):
    random = np.random.default_rng(seed)
    blocks, places, ways = random.integers(2, 7), random.integers(1, 9), random.integers(1, 3)
    groups = [f"b.{number}" for number in range(blocks) for _ in range(ways)]
    cost = random.integers(1, 100, len(groups))
    saved = random.integers(-10, 100, (len(groups), places))
    excess = (saved.clip(0).sum(axis=0) / ways * random.uniform(0.2, 0.8, places)).astype(int)
    least = enumerated(cost, saved, excess, groups)

    chosen, exact = cheapest(cost, saved, excess, groups)
    assert exact
    if least is None:
        assert chosen == []
        return
    assert cost[chosen].sum() == least
    assert (saved[chosen].sum(axis=0) >= excess).all()
    assert len({groups[each] for each in chosen}) == len(chosen)


def test_many_equal_blocks_are_searched_whole():
    # 40 blocks of 10 bytes each, of which 195 have to go: the 20 cheapest.
    cost = np.arange(100, 140)
    chosen, exact = cheapest(cost, np.full((40, 1), 10), np.array([195]), [*map(str, range(40))])

    assert chosen == [*range(20)]
    assert exact


def test_of_a_recorded_model_no_other_set_is_faster(replay):
    capacity = 9_000_000
    every = [
        daydream.whatif(replay, "checkpointing", layers=",".join(blocks), capacity=capacity)
        for count in range(1, 5)
        for blocks in combinations(BLOCKS, count)
    ]
    best = min((each for each in every if each.memory.fits), key=lambda each: each.predicted_ns)
    found = choose_blocks(replay, capacity)

    assert found.options["layers"] == best.options["layers"]
    assert found.predicted_ns == best.predicted_ns
    assert found.memory.high_bytes <= capacity < found.memory.before_bytes
    chosen = [row.block for row in found.blocks if row.chosen]
    assert sorted(chosen) == found.options["layers"].split(",")
    assert all(f"'{block}'" in found.code for block in chosen)
    assert found.code.count("'blocks.") == len(chosen)


def test_blocks_are_offloaded_where_that_costs_less(h200):
    # 1,458 MiB are reserved as recorded, and 600 may be CUDA's context: a little has to go.
    found = choose_blocks(h200, 2050 * 2**20)
    chosen = [row for row in found.blocks if row.chosen]
    again = [row.cost_ns for row in found.blocks if row.change == "checkpointing"]
    assert {row.change for row in chosen} == {"vdnn"}
    assert found.memory.after_bytes < found.memory.before_bytes - 50 * 2**20
    assert 0 < found.predicted_ns - found.replayed_ns < min(again)
    # Inputs of three linear layers of 8 x 256 x 768 values of 4 bytes go; the last layer's stays.
    assert {row.saved_bytes for row in chosen} == {3 * 8 * 256 * 768 * 4}


def test_where_copies_share_a_link_fewer_blocks_are_offloaded(h200):
    # Each block alone costs 50 us; four of them 1.3 ms, more than to compute one again.
    found = choose_blocks(h200, 2000 * 2**20)
    assert [row.change for row in found.blocks if row.chosen] == ["checkpointing"]


def test_the_screen_names_the_blocks_and_the_code(replay):
    found = choose_blocks(replay, 9_000_000)
    text = view_text(found)
    for row in found.blocks:
        assert (f"{row.block}  " in text) == row.chosen
    assert text.count("in code: ") == 2  # the change's own, and of these blocks
    assert found.code.splitlines()[0] in text


@pytest.mark.parametrize(
    ("capacity", "said"), [(13_000_000, "as it is"), (2_000_000, "no choice of blocks fits 1.91 MiB")]
)
def test_where_there_is_nothing_to_choose_it_says_so(replay, capacity, said):
    with pytest.raises(NotApplicableError, match=said):
        choose_blocks(replay, capacity)


def test_the_code_wraps_the_blocks_that_were_chosen(replay):
    torch = pytest.importorskip("torch")

    model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))})
    exec(choose_blocks(replay, 9_000_000).code, {"model": model})
    wrapped = [type(block).__name__ for block in model["blocks"]]

    assert wrapped == ["Linear", "CheckpointWrapper", "CheckpointWrapper", "Linear"]


def test_the_command_answers_in_json(replay, tmp_path):
    trace = str(FOLDER / "Mixer.parquet")
    done = typed("plan", trace, "--only", "checkpointing", "--capacity", "9MB", "--json", folder=tmp_path)
    found = done.json()

    assert found["options"]["layers"] == "blocks.1,blocks.2"
    assert found["memory"]["fits"]
    assert [row["block"] for row in found["blocks"] if row["chosen"]] == BLOCKS[1:3]
