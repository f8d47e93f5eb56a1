"""SQL over traces: what the tables hold, and what a query cannot reach."""

import json

import numpy as np
import pytest
from cli.command_line import daydream as command_line
from graph.small_traces import trace
from shared import EXAMPLES, ROOT

import daydream
from daydream.errors import DaydreamError
from daydream.trace.memory_events import MemoryEvents

duckdb = pytest.importorskip("duckdb", reason="needs the extra `sql`")

from daydream.integrations.sql import TABLES, database, query  # noqa: E402

CPU = str(EXAMPLES / "mlp_cpu.json.gz")
SECRET = "what no query may see"


@pytest.fixture(scope="module")
def gpu():
    return daydream.load(EXAMPLES / "synthetic_gpt_gpu.json.gz")


def small():
    """An operator of 10 ns, the call in it, and the kernel that the call launched at 4 ns; memory of both."""
    found = trace("""
        op aten::mm 0 .01
        call cudaLaunchKernel .004 .006 correlation=1
        kernel gemm .009 .014 correlation=1
    """)
    found.memory = MemoryEvents({
        "time_ns": np.array([1, 8]), "bytes": np.array([512, -512]), "address": np.array([-1, 64]),
    })  # fmt: skip
    return found


def test_the_tables_are_those_of_the_schema_whatever_the_trace_lacks():
    with database(small()) as connection:
        for name, table in TABLES.items():
            found = connection.execute(f"DESCRIBE {name}").fetchall()
            assert {row[0]: row[1] for row in found} == {
                column: kind for column, (kind, _) in table.columns.items()
            }


def test_sums_are_those_of_the_arrays(gpu):
    kernels = gpu.is_kind("kernel")
    found = query(gpu, "SELECT count(*), sum(duration_ns), count(launched_ns) FROM kernels").rows
    assert found == [(int(kernels.sum()), int(gpu["duration_ns"][kernels].sum()), int(kernels.sum()))]
    steps = query(gpu, "SELECT name, measured_ns FROM steps WHERE covered ORDER BY step").rows
    assert steps == [(s["name"], s["measured_ns"]) for s in gpu.metadata["steps"] if s["covered"]]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('{file}')",
        "SELECT content FROM read_text('{file}')",
        "SELECT * FROM glob('{folder}/*')",
        "FROM parquet_metadata('{file}')",
        "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')",
        "SELECT getenv('HOME')",
        "COPY events TO '{folder}/out.csv'",
        "ATTACH '{folder}/new.db'",
        "EXPORT DATABASE '{folder}/all'",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA database_list",
        "DROP VIEW kernels",
        "DELETE FROM steps",
        "CREATE TABLE mine AS SELECT 1",
        "SELECT 1; COPY events TO '{folder}/out.csv'",
        "SELECT * FROM trace",  # variables of the program are no tables
        "SELECT",
        "",
    ],
)
def test_a_query_reaches_the_trace_and_nothing_else(statement, tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    with pytest.raises(DaydreamError) as refused:
        query(small(), statement.format(file=file, folder=tmp_path))
    assert SECRET not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.txt"]


def test_an_answer_ends_where_it_is_told_to_and_says_so(gpu):
    found = query(gpu, "SELECT row FROM events ORDER BY row", most=3)
    assert (found.rows, found.more) == ([(0,), (1,), (2,)], True)
    assert not query(gpu, "SELECT 1", most=1).more


def test_values_that_json_has_not_are_texts_and_no_number_is_null():
    found = query(small(), "SELECT 'nan'::DOUBLE, 1.5::DECIMAL(3,1), DATE '2026-01-02', [1, NULL], {'a': 2}")
    assert json.loads(json.dumps(found.to_json()))["rows"] == [
        [None, "1.5", "2026-01-02", [1, None], {"a": 2}]
    ]


def test_columns_of_one_name_are_kept_apart():
    assert query(small(), "SELECT 1 AS a, 2 AS a, 3 AS a").records() == [{"a": 1, "a 2": 2, "a 3": 3}]


def run(*words):
    return command_line("sql", *words, folder=EXAMPLES)


def test_the_command_prints_rows_or_one_object():
    asked = "SELECT phase, sum(duration_ns) AS total_ns FROM operators GROUP BY phase ORDER BY phase LIMIT 2"

    done = run("--trace", CPU, asked, "--json")
    found = done.json()
    assert found["schema"] == 1
    assert [column["name"] for column in found["columns"]] == ["phase", "total_ns"]
    assert [row[0] for row in found["rows"]] == ["backward", "data"]
    said = run("--trace", CPU, asked).out
    assert said.splitlines()[0] == "rows (2 rows)"
    assert "ms" in said


def test_the_command_refuses_in_a_line():
    for words, code, part in (
        (["--trace", CPU, "DROP TABLE events"], 1, "a trace is only read"),
        (["--trace", CPU, "SELECT x FROM events"], 1, "The tables are events"),
        (["--trace", CPU], 2, "missing argument 'QUERY'"),
        (["SELECT 1"], 2, "missing argument 'TRACE'"),
    ):
        done = run(*words)
        assert (done.code, done.out) == (code, "")
        assert part in done.err
        assert "Traceback" not in done.err


def test_the_schema_is_shown_without_a_trace():
    tables = run("--schema", "--json").json()["tables"]
    assert [each["name"] for each in tables] == list(TABLES)
    assert "launched_ns" in run("--schema").out


PAGE = (ROOT / "docs" / "guides" / "sql.md").read_text(encoding="utf-8")


def test_the_page_names_every_table_and_column():
    for name, table in TABLES.items():
        assert [one for one in (name, *table.columns) if f"`{one}`" not in PAGE] == []
