"""A database of rocprofv3 (rocpd), written from the documented schema: no public file was at hand."""

import sqlite3

SUFFIX = "_00001234_5678"
TABLES = {
    "metadata": ("id, tag, value", [(1, "schema_version", "3.0.3")]),
    "string": (
        "id, guid, string",
        [
            (1, "g", "hipLaunchKernel"),
            (2, "g", "HIP_RUNTIME_API_EXT"),
            (3, "g", "hipMemcpyAsync"),
            (4, "g", "MEMORY_COPY_HOST_TO_DEVICE"),
            (5, "g", "step"),
            (6, "g", "MARKER_CORE_RANGE_API"),
            (7, "g", "KERNEL_DISPATCH"),
            (8, "g", "ncclAllReduce"),
            (9, "g", "RCCL_API"),
        ],
    ),
    "info_process": ("id, pid, command, environment", [(1, 4242, "train", '{"TOKEN": "secret"}')]),
    "info_thread": ("id, tid, name", [(1, 99, "main")]),
    "info_agent": (
        "id, nid, pid, type, absolute_index, name, model_name, product_name",
        [
            (1, 1, 1, "CPU", 0, "EPYC", "", "AMD EPYC"),
            (2, 1, 1, "GPU", 1, "gfx942", "aqua", "AMD Instinct MI300X"),
        ],
    ),
    "info_kernel_symbol": (
        "id, kernel_name, display_name",
        [(1, "gemm.kd", "gemm<float>(int)"), (2, "relu [clone .kd]", None)],
    ),
    "event": (
        "id, category_id, stack_id, parent_stack_id, correlation_id",
        [
            (1, 2, 11, 0, 0),
            (2, 7, 11, 0, 0),
            (3, 2, 12, 0, 0),
            (4, 7, 12, 0, 0),
            (5, 2, 13, 0, 0),
            (6, 7, 13, 0, 0),
            (7, 6, 14, 0, 0),
            (8, 9, 15, 0, 0),
        ],
    ),
    "region": (
        "id, nid, pid, tid, start, end, name_id, event_id",
        [
            (1, 1, 1, 1, 1_000, 3_000, 1, 1),
            (2, 1, 1, 1, 4_000, 6_000, 1, 3),
            (3, 1, 1, 1, 7_000, 9_000, 3, 5),
            (4, 1, 1, 1, 500, 60_000, 5, 7),
            (5, 1, 1, 1, 900, 3_500, 8, 8),
        ],
    ),
    "kernel_dispatch": (
        "id, nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
        + ", ".join(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
        + ", event_id",
        [
            (1, 1, 1, 1, 2, 1, 1, 3, 5, 10_000, 40_000, 256, 1, 1, 1024, 2, 1, 2),
            (2, 1, 1, 1, 2, 2, 2, 3, 5, 41_000, 50_000, 64, 1, 1, 640, 1, 1, 4),
        ],
    ),
    "memory_copy": (
        "id, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, size, queue_id, stream_id, event_id",
        [(1, 1, 1, 12_000, 13_000, 4, 2, 1, 4096, 3, 6, 6)],
    ),
    "pmc_event": ("id, event_id, pmc_id, value", []),
}


def write_rocpd(path, suffixes=(SUFFIX,), **rows):
    """Write the database; `rows` replaces those of a table, None leaves the table out."""
    connection = sqlite3.connect(path)
    for suffix in suffixes:
        for name, (columns, usual) in TABLES.items():
            mine = rows.get(name, usual)
            if mine is None:
                continue
            quoted = ", ".join(f'"{column}"' for column in columns.split(", "))
            connection.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({quoted})')
            marks = ", ".join("?" * len(columns.split(", ")))
            connection.executemany(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({marks})', mine)
    connection.commit()
    connection.close()
    return path
