"""One taxonomy of causes and bounds: a key, a label, a colour each, which every output takes from there."""

from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS
from daydream.predict.breakdown import OF_KERNELS
from daydream.simulate.critical_path import OF_EDGE, OF_KIND


def test_every_kind_of_task_and_of_edge_has_a_cause():
    assert set(OF_KIND) == set(KINDS)
    assert set(OF_EDGE) == set(Cause) - {Cause.LANE}  # which is a gap, or a start-up on the device
    assert {cause.bound for cause in OF_KERNELS.values()} == {OF_KIND["kernel"].bound}
