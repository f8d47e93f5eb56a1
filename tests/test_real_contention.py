"""Contention in public traces of several GPUs: what is measured, and what it changes."""

import pytest
from shared import shared_replay

import daydream
from daydream.costs.contention import measured_contention

A100_DDP = "kineto/a100_resnet_ddp_rank0of2.json.gz"
V100_RECSYS = "kineto/v100_recsys_rank1of2_copy_waits.json.gz"
MI300X_DDP = "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz"


@pytest.mark.parametrize(("name", "least", "most"), [(A100_DDP, 1.15, 1.35), (V100_RECSYS, 1.02, 1.10)])
def test_kernels_are_slower_in_the_steps_in_which_a_transfer_runs_beside_them(name, least, most):
    found = measured_contention(shared_replay(name).graph).kernel

    assert found is not None
    assert least < found.low < found.factor < found.high < most
    assert found.places > 50


def test_kernels_that_run_beside_a_transfer_in_every_step_show_nothing():
    found = daydream.whatif(shared_replay(MI300X_DDP), "network", bandwidth_factor=2.0)

    assert found.contention is not None
    assert found.contention.note().startswith("Contention is not modelled: too few kernels ran during")


def test_less_transferring_beside_kernels_makes_them_faster_and_more_slower():
    replay = shared_replay(V100_RECSYS)
    for factor, gains in ((10.0, True), (0.5, False)):
        measured, off = (
            daydream.whatif(replay, "network", bandwidth_factor=factor, contention=how)
            for how in ("measured", "off")
        )
        assert (measured.speedup > off.speedup) is gains
        assert measured.speedup == pytest.approx(off.speedup, rel=0.03)
        assert measured.timeline.overlaps_settled
