"""`--contention` of `whatif` and `scaling`, as it is typed and as it is told."""

import pytest
from contention_machine import Machine
from test_cli_json import parsed

NETWORK = ("whatif", "network", "--bandwidth-factor", "4", "--trace", "transfers.parquet")


@pytest.fixture(scope="module")
def recording():
    return Machine(kernel_factor=1.3).record()


def test_a_prediction_tells_what_it_was_made_with(ask, folder, recording):
    recording.save(folder / "transfers.parquet")
    shown = " ".join(ask(*NETWORK).out.split())
    assert "Kernels take x1.30 while a transfer runs, measured on " in shown
    found = {
        how: parsed(ask(*NETWORK, "--contention", how, "--json"))
        for how in ("measured", "off", "1.3", "2,1.1")
    }
    modes = {how: result["contention"]["mode"] for how, result in found.items()}
    assert modes == {"measured": "measured", "off": "off", "1.3": "given", "2,1.1": "given"}
    assert found["2,1.1"]["contention"] == {
        "mode": "given", "matrix_factor": 2.0, "other_factor": 2.0, "transfer_factor": 1.1,
        "evidence": {"kernel": None, "matrix": None, "other": None, "transfer": None},
        "kernels": True, "reason": None,
    }  # fmt: skip
    assert list(found["measured"]["contention"]["evidence"]["kernel"]) == [
        "factor", "low", "high", "places", "beside", "alone", "overlapped_ns",
    ]  # fmt: skip
    # Less transferring makes kernels faster, which nobody told where it is off.
    assert found["measured"]["speedup"] > found["off"]["speedup"]
    assert found["measured"]["speedup"] == pytest.approx(found["1.3"]["speedup"], rel=1e-3)


@pytest.mark.parametrize("command", [NETWORK, ("scaling", "--trace", "transfers.parquet")])
@pytest.mark.parametrize("value", ["0.9", "some", "1.1,2,3", "1.1,", "-2"])
def test_a_value_that_makes_no_sense_is_one_line_and_a_usage_error(ask, command, value):
    done = ask(*command, "--contention", value)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: invalid value for '--contention': contention is 'measured', 'off', a ")
    assert "Traceback" not in done.err
