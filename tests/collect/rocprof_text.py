"""Small files of rocprofv3, written by hand after its documentation: times in ns."""

import json

GPU, CPU = 37946, 37944
KINDS = [
    {"kind": "NONE", "operations": []},
    {
        "kind": "HIP_RUNTIME_API",
        "operations": ["none", "hipLaunchKernel", "hipMemcpyAsync", "hipStreamSynchronize"],
    },
    {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
    {"kind": "KERNEL_DISPATCH", "operations": []},
    {"kind": "RCCL_API", "operations": ["ncclAllReduce"]},
    {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
]
LAUNCH, COPY, WAIT = 1, 2, 3


def api(kind, operation, start, end, correlation, thread=7):
    return {
        "kind": kind,
        "operation": operation,
        "thread_id": thread,
        "start_timestamp": start,
        "end_timestamp": end,
        "correlation_id": {"internal": correlation, "external": 0},
    }


def dispatch(kernel, start, end, correlation, **changes):
    info = {
        "agent_id": {"handle": GPU},
        "queue_id": {"handle": 3},
        "kernel_id": kernel,
        "dispatch_id": correlation,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 1000, "y": 2, "z": 1},
    }
    return {
        **api(3, 2, start, end, correlation),
        "dispatch_info": info,
        "stream_id": {"handle": 5},
        **changes,
    }


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
