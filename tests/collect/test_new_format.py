"""The format that CONTRIBUTING.md adds as an example is read as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from daydream.collect.importers.formats import Options
from daydream.errors import TraceError

GUIDE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_reader_of_the_guide_reads_its_lines(tmp_path):
    code = re.search(r"```python\n(\"\"\"Lines of Mine.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code[1], names)
    path = tmp_path / "a.mine"
    path.write_text(
        "# mine 1\nkernel,3,7,1000,2000,gemm\ncall,41,7,500,900,cudaLaunchKernel\nkernel,3,8,x,2,y\n"
    )

    (recording,) = names["read_mine"](path, Options())

    assert recording["start_ns"].tolist() == [0, 500]
    assert recording["correlation"].tolist() == [7, 7]
    assert recording.texts_of("name", [0, 1]) == ["cudaLaunchKernel", "gemm"]
    assert recording["tid"].tolist()[0] == 41
    assert recording["stream"].tolist()[1] == 3
    assert recording.metadata["notes"] == ["1 row had no readable time and was left out."]
    path.write_text("# mine 1\n")
    with pytest.raises(TraceError, match=r"record with mine --trace"):
        names["read_mine"](path, Options())
