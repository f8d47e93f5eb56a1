"""Small files of rocprofv3, after its documentation: JSON, CSV and a database (rocpd); times in ns."""

import json
import sqlite3

GPU, CPU = 37946, 37944
OPERATIONS = {
    "NONE": "", "HIP_RUNTIME_API": "none hipLaunchKernel hipMemcpyAsync hipStreamSynchronize",
    "MEMORY_COPY": "MEMORY_COPY_NONE MEMORY_COPY_HOST_TO_DEVICE", "KERNEL_DISPATCH": "",
    "RCCL_API": "ncclAllReduce", "MARKER_CORE_API": "roctxMarkA roctxRangePushA",
}  # fmt: skip
KINDS = [{"kind": kind, "operations": names.split()} for kind, names in OPERATIONS.items()]
LAUNCH, COPY, WAIT = 1, 2, 3


def api(kind, operation, start, end, correlation):
    return {
        "kind": kind, "operation": operation, "thread_id": 7, "start_timestamp": start, "end_timestamp": end,
        "correlation_id": {"internal": correlation, "external": 0},
    }  # fmt: skip


def dispatch(kernel, start, end, correlation):
    info = {
        "agent_id": {"handle": GPU}, "queue_id": {"handle": 3}, "kernel_id": kernel,
        "dispatch_id": correlation, "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }  # fmt: skip
    return {**api(3, 2, start, end, correlation), "dispatch_info": info, "stream_id": {"handle": 5}}


def process(steps=4):
    """Steps of a copy, a kernel and an all-reduce inside a marked range; each waits for the stream."""
    calls, rccl, marks, kernels, copies, texts = [], [], [], [], [], []
    for step in range(steps):
        at, ids = 1_000_000 + step * 100_000, 10 * step
        marks.append(api(5, 1, at, at + 90_000, ids + 9))
        texts.append({"key": ids + 9, "value": f"step {step}"})
        calls += [
            api(1, COPY, at + 1_000, at + 3_000, ids + 1),
            api(1, LAUNCH, at + 4_000, at + 6_000, ids + 2),
            api(1, LAUNCH, at + 11_000, at + 13_000, ids + 3),
            api(1, WAIT, at + 15_000, at + 80_000, ids + 4),
        ]
        rccl.append(api(4, 0, at + 10_000, at + 14_000, ids + 5))
        ends = {"src_agent_id": {"handle": CPU}, "dst_agent_id": {"handle": GPU}, "bytes": 4096}
        copies.append({**api(2, 1, at + 5_000, at + 9_000, ids + 1), **ends, "stream_id": {"handle": 5}})
        kernels += [
            dispatch(1, at + 10_000, at + 40_000, ids + 2),
            dispatch(2, at + 41_000, at + 78_000, ids + 3),
        ]
    return {
        "metadata": {"pid": 42, "environment": {"TOKEN": "secret"}},
        "agents": [
            {"id": {"handle": CPU}, "type": 1},
            {"id": {"handle": GPU}, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304},
        ],
        "strings": {"buffer_records": KINDS, "marker_api": texts},
        "kernel_symbols": [
            {"kernel_id": 1, "demangled_kernel_name": "gemm<float>(int) [clone .kd]"},
            {"kernel_id": 2, "formatted_kernel_name": "ncclDevKernel_Generic_1(ncclDevKernelArgs)"},
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": kernels,
            "memory_copy": copies,
            "hip_api": calls,
            "rccl_api": rccl,
            "marker_api": marks,
        },
    }


def write_json(path, *processes):
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


KERNELS_OLD = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X",'
    '"Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH",4,1,7,1,16,"add(float*, int)",2,110000,140000,0,0,64,1,1,1024,4,1\n'
    '"KERNEL_DISPATCH",4,2,7,2,17,"mul.kd",3,141000,160000,0,0,64,1,1,1000,1,1\n'
)
KERNELS_NEW = (
    "KIND,Agent_ID,QUEUE_ID,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,kernel_name,Correlation_ID,"
    "start_timestamp,End_Timestamp,LDS_Block_Size,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,"
    "Grid_Size_X,Grid_Size_Y,Grid_Size_Z\n"
    'KERNEL_DISPATCH,Agent 4,1,9,7,1,16,"add(float*, int)",2,110000,140000,0,64,1,1,1024,4,1\n'
    "KERNEL_DISPATCH,Agent 4,1,9,7,2,17,mul.kd,3,141000,160000,0,64,1,1,1000,1,1\n"
)
CALLS = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"HIP_RUNTIME_API","hipMemcpyAsync",42,7,1,100000,101000\n'
    '"HIP_RUNTIME_API","hipExtModuleLaunchKernel",42,7,2,102000,103000\n'
    '"HIP_RUNTIME_API","hipLaunchKernel",42,7,3,104000,105000\n'
)
COPIES = (
    '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,4,1,101000,104000\n'
)
AGENTS = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Product_Name"\n'
    '0,0,"CPU",0,"AMD EPYC"\n4,1,"GPU",304,"AMD Instinct MI300X"\n'
)
TABLES = {  # columns, and rows
    "metadata": ("id tag value", "1 schema_version 3.0.3"),
    "string": (
        "id guid string",
        """1 g hipLaunchKernel|2 g HIP_RUNTIME_API_EXT|3 g hipMemcpyAsync|4 g MEMORY_COPY_HOST_TO_DEVICE|
        5 g step|6 g MARKER_CORE_RANGE_API|7 g KERNEL_DISPATCH|8 g ncclAllReduce|9 g RCCL_API""",
    ),
    "info_process": ("id pid command environment", "1 4242 train secret"),
    "info_thread": ("id tid name", "1 99 main"),
    "info_agent": (
        "id nid pid type absolute_index name product_name",
        "1 1 1 CPU 0 EPYC AMD_EPYC|2 1 1 GPU 1 gfx942 AMD_Instinct_MI300X",
    ),
    "info_kernel_symbol": ("id kernel_name display_name", "1 gemm.kd gemm<float>(int)|2 relu.kd -"),
    "event": (
        "id category_id stack_id parent_stack_id correlation_id",
        "1 2 11 0 0|2 7 11 0 0|3 2 12 0 0|4 7 12 0 0|5 2 13 0 0|6 7 13 0 0|7 6 14 0 0|8 9 15 0 0",
    ),
    "region": (
        "id nid pid tid start end name_id event_id",
        """1 1 1 1 1000 3000 1 1|2 1 1 1 4000 6000 1 3|3 1 1 1 7000 9000 3 5|4 1 1 1 500 60000 5 7|
        5 1 1 1 900 3500 8 8""",
    ),
    "kernel_dispatch": (
        """id nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end workgroup_size_x
        workgroup_size_y workgroup_size_z grid_size_x grid_size_y grid_size_z event_id""",
        "1 1 1 1 2 1 1 3 5 10000 40000 256 1 1 1024 2 1 2|2 1 1 1 2 2 2 3 5 41000 50000 64 1 1 640 1 1 4",
    ),
    "memory_copy": (
        "id pid tid start end name_id dst_agent_id src_agent_id size queue_id stream_id event_id",
        "1 1 1 12000 13000 4 2 1 4096 3 6 6",
    ),
    "pmc_event": ("id event_id pmc_id value", ""),
}


def cell(text):
    if text == "-":
        return None
    return int(text) if text.isdigit() else text.replace("AMD_", "AMD ").replace("_MI", " MI")


def write_rocpd(path, suffixes=("_00001234_5678",), **rows):
    """Write the database; `rows` replaces those of a table, None leaves the table out."""
    with sqlite3.connect(path) as database:
        for suffix in suffixes:
            for name, (columns, usual) in TABLES.items():
                if (mine := rows.get(name, usual)) is None:
                    continue
                quoted = ", ".join(f'"{column}"' for column in columns.split())
                database.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({quoted})')
                marks = ", ".join("?" * len(columns.split()))
                values = [[cell(each) for each in row.split()] for row in mine.split("|") if row.strip()]
                database.executemany(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({marks})', values)
    database.close()
    return path
