"""Sound files with something wrong: bytes, JSON values, cells of tables, rows of databases, columns of parquet."""

import base64
import copy
import gzip
import io
import json
import sqlite3
import tempfile
from pathlib import Path

INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**16, 2**31 - 1, 2**40, 2**53, 2**62, 2**63 - 1)
STRANGE = (
    *INTEGERS,
    None,
    True,
    False,
    "",
    "a",
    "\x1b[31mred\x1b[0m",
    "half \ud83d",
    "-1",
    "1e3",
    "0x1f",
    "a\nb",
    1.5,
    5e-324,
    -7.25,
    2**32 - 1,
    2**63,
    2**64 - 1,
    10**30,
    1e300,
    -1e300,
    float("nan"),
    float("inf"),
    [],
    [1, 2],
    [[1, 2], [3]],
    [2**40, 2**40, 2**40],
    [None],
    {},
    {"a": [None]},
    [[[[[[1]]]]]],
    "record_param_comms",
    "ProfilerStep#1",
    "nn.Module: Linear_0",
    "Optimizer.step#Adam.step",
    "aten::mm",
    "kernel",
    "cpu_op",
)
CELLS = (
    *["", "x", "-1", "1e9", "nan", "inf", "0", "\x00", "\x1b[31m", "(", "Agent 99", "99999999999999999999"],
    "1,2",
    "1.048,576",
    '"',
    "1,362.20",
)

OTHERS = ("x", 1.5, None, b"b", True, [1], {"a": 1}, 2**63 - 1, -5, 2**47, 2**50)


def text_of(document):
    """Return JSON, whatever its texts hold."""
    return json.dumps(document).encode("utf-8", "surrogatepass")


def bytes_changed(text, chance):
    """Flip, drop, cut or repeat some bytes."""
    data = bytearray(text)
    for _ in range(chance.choice((1, 3, 30))):
        if data:
            at = chance.randrange(len(data))
            if chance.random() < 0.7:
                data[at] = chance.choice((chance.randrange(256), *b'{}[]",:0-.eN\\\n'))
            elif chance.random() < 0.5:
                del data[at : at + chance.choice((1, 10, 1000))]
            else:
                data[at:at] = data[at : at + 100]
    return bytes(data[: chance.randrange(len(data) + 1)] if chance.random() < 0.2 else data)


def tree_changed(document, chance):
    """Replace or leave out a few values of a JSON document, wherever they stand."""
    for _ in range(chance.choice((1, 1, 2, 5, 30))):
        where = document
        while where:
            key = chance.choice(list(where) if isinstance(where, dict) else range(len(where)))
            if isinstance(where[key], (dict, list)) and chance.random() < 0.9:
                where = where[key]
                continue
            if chance.random() < 0.2:
                del where[key]
            else:
                where[key] = copy.deepcopy(chance.choice(STRANGE))
            break
    return document


def cells_changed(text, chance, *, separator=","):
    """Replace a few cells of a table, or words of lines."""
    rows = [line.split(separator) for line in text.splitlines()]
    for _ in range(chance.choice((0, 1, 3))):
        row = chance.choice(rows)
        row[chance.randrange(len(row))] = chance.choice(CELLS)
    return "\n".join(separator.join(row) for row in rows) + "\n"


def database_changed(content, chance):
    """Replace values of a database, delete rows, or drop a column."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.db"
        path.write_bytes(content)
        connection = sqlite3.connect(path)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for _ in range(chance.choice((0, 1, 2, 5))):
            (table,) = chance.choice(tables)
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info('{table}')")]
            column = chance.choice(columns)
            rows = f"WHERE rowid % {chance.choice((1, 2, 7))} = 0"
            value = chance.choice((*INTEGERS, None, "", "x", b"\xff\xfe", 1.5, float("inf"), "\x1b[31m"))
            others = f"DELETE FROM '{table}' {rows}", f"ALTER TABLE '{table}' DROP COLUMN \"{column}\""
            update = f"UPDATE '{table}' SET \"{column}\" = ? {rows}"
            how = chance.choice((*[update] * 4, *others))
            try:
                connection.execute(how, [value] * how.count("?"))
            except sqlite3.Error:  # the only column, or one of an index
                continue
        connection.commit()
        connection.close()
        return path.read_bytes()


def columns_changed(table, chance):
    """Give columns of an Arrow table other values or types, or drop, double, cut, mix or empty them."""
    import pyarrow as pa

    for _ in range(chance.choice((1, 1, 2, 5))):
        if not table.num_columns or not table.num_rows:
            return table
        at, rows = chance.randrange(table.num_columns), table.num_rows
        field, column = table.schema.field(at), table.column(at)
        kind = field.type if not pa.types.is_dictionary(field.type) else pa.string()
        how = chance.choice(("values",) * 6 + ("mixed", "drop", "double", "cut", "null", "other", "cast"))
        values = column.to_pylist() if how in ("values", "mixed") else []
        odd = [*INTEGERS, None, chance.randrange(rows)] if pa.types.is_integer(kind) else ["", "x", "[[-5]]"]
        for _ in range(chance.choice((1, 1, 2, rows)) if how == "values" else 0):
            values[chance.randrange(rows)] = chance.choice((*odd, chance.choice(values)))
        if how == "mixed":  # each value is right, all together are not
            chance.shuffle(values)
        try:
            if how == "drop":
                table = table.remove_column(at)
            elif how == "double":
                table = table.append_column(field, column)
            elif how == "cut":
                table = table.slice(chance.randrange(rows + 1), chance.randrange(rows + 1))
            elif how == "cast":
                kinds = pa.int8(), pa.int16(), pa.uint64(), pa.float64(), pa.string(), pa.int64()
                table = table.set_column(at, field.name, column.cast(chance.choice(kinds)))
            else:
                values = {"null": [None] * rows, "other": [chance.choice(OTHERS)] * rows}.get(how, values)
                column = pa.array(values) if how == "other" else pa.array(values, kind).cast(field.type)
                table = table.set_column(at, field.name, column)
        except (pa.ArrowException, OverflowError):  # a value that the type cannot hold
            continue
    return table


def parquet_changed(content, chance):
    """Change columns of a parquet file, its metadata, or the table of memory that files of schema 1 have there."""
    from pyarrow.parquet import read_table

    table = read_table(io.BytesIO(content))
    about = dict(table.schema.metadata)
    if chance.random() < 0.7:
        table = columns_changed(table, chance)
    elif b"daydream.memory" in about:
        inner = columns_changed(read_table(io.BytesIO(base64.b64decode(about[b"daydream.memory"]))), chance)
        about[b"daydream.memory"] = base64.b64encode(written(inner))
    else:
        text = json.dumps(tree_changed(json.loads(about[b"daydream"]), chance))
        odd = "", "null", "[]", "[" * 100_000, '{"schema_version": 1e400}', text[: len(text) // 2]
        about[b"daydream"] = chance.choice((*[text] * 90, *odd)).encode("utf-8", "replace")
    return written(table.replace_schema_metadata(about))


def written(table):
    """Return a table as a parquet file's bytes."""
    from pyarrow import parquet

    target = io.BytesIO()
    parquet.write_table(table, target)
    return target.getvalue()


def packed(name, text, chance):
    """Return a file, now and then with changed bytes, cut off, or gzipped and then changed."""
    if chance.random() < 0.3:
        text = bytes_changed(text, chance)
    if chance.random() < 0.15:
        text = gzip.compress(text, 1)
        return {f"{name}.gz": bytes_changed(text, chance) if chance.random() < 0.3 else text}
    return {name: text}


def damaged(name, content, chance):
    """Return a file with something wrong, by what it holds, or with nothing wrong; as `packed` leaves it."""
    ending = name.rpartition(".")[2]
    if ending == "json":
        content = text_of(tree_changed(json.loads(content), chance))
    elif ending in ("csv", "txt"):
        text = cells_changed(content.decode(), chance, separator=chance.choice(", "))
        content = text.encode("utf-8", "surrogatepass")
    elif ending in ("db", "sqlite"):
        content = database_changed(content, chance)
    elif ending == "parquet":
        content = parquet_changed(content, chance)
    return packed(name, content, chance)
