"""The page of all JSON is what the records say, and the JSON has the keys of the records."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import daydream

ROOT = Path(__file__).parents[1]
GPT = ROOT / "examples" / "synthetic_gpt_gpu.json.gz"


def keys(record):
    return list(record.__struct_encode_fields__)


def test_the_page_is_current():
    done = subprocess.run([sys.executable, ROOT / "tools" / "json_page.py", "--check"], check=False)
    assert done.returncode == 0, "python tools/json_page.py writes it again"


def test_json_has_the_keys_of_the_records_and_their_values():
    replay = daydream.replay(GPT)
    answers: list[Any] = [
        replay.figures(),
        daydream.whatif(replay, "fused-adam"),
        daydream.rank(replay, ["fused-adam", "amp"], with_curves=False),
        daydream.explain(replay),
        daydream.sweep(replay, "scale", {"factor": [0.5]}, on="cpu"),
    ]
    for answer in answers:
        document = answer.to_json()
        assert list(document) == keys(answer)
        fields = dict(zip(keys(answer), answer.__struct_fields__, strict=True))
        for key, value in document.items():
            own = getattr(answer, fields[key])
            if isinstance(own, (int, float, str)):
                assert value == own


def test_a_copy_of_a_record_has_what_it_was_made_from():
    found = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
    assert copy.copy(found).bound == found.bound
    assert found.code == found.to_json()["code"] == "torch.optim.Adam(parameters, fused=True)"
