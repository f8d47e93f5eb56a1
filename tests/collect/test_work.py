"""What device work does: element types and collectives."""

import numpy as np
import pytest
from kineto_text import call, kernel, note, op, training
from shared import shared_replay

from daydream.collect.derive.device_work import (
    collective_of_name,
    dtype_of_inputs,
    dtype_of_kernel,
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("ampere_sgemm_128x64_nn", "float32"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1", "float4_e2m1"),
        (
            "void cutlass::gemm<cutlass::bfloat16_t, cutlass::nv_float4_t<cutlass::float_e2m1_t> >()",
            "float4_e2m1",
        ),
        ("void fp8_blockscale_gemm_kernel<float, 128>(float*)", "float8_e4m3fn"),  # the scales are floats
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_nn", "float16"),
        ("volta_h884gemm_64x64_ldg8_nn", "float16"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "bfloat16"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", "float32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16", "float32"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_MT64x64", "bfloat16"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16", "float32"),
        ("volta_dgemm_64x64_nn", "float64"),
        (
            (
                "void reduce_kernel<512, 1, ReduceOp<c10::Half, at::native::func_wrapper_t<c10::Half, "
                "at::native::sum_functor<c10::Half, float, c10::Half>>>>"
            ),
            "float16",
        ),
        (
            (
                "void vectorized_elementwise_kernel<4, BUnaryFunctor<c10::BFloat16, c10::BFloat16, "
                "c10::BFloat16, MulFunctor<float>>>"
            ),
            "bfloat16",
        ),
        (
            "void vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<long>, Array<char*, 2>>",
            "int64",
        ),
        ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128>", "float16"),
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "bfloat16"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", "float16"),
        ("Memset (Device)", None),
        ("batched_transpose_16x32_half", None),  # any two-byte type
        ("my_kernel", None),
    ],
)
def test_kernel_names_give_away_their_element_type(name, dtype):
    assert dtype_of_kernel(name) == dtype


def test_the_first_floating_input_is_the_element_type():
    assert dtype_of_inputs(["long int", "c10::Half", "float"]) == "float16"
    assert dtype_of_inputs(["Scalar", "long int", ""]) == "int64"
    assert dtype_of_inputs(["TensorList", ""]) is None
    assert dtype_of_inputs(None) is None


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("allreduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("broadcast", "broadcast"),
        ("c10d::allreduce_", "all_reduce"),
        ("wait", None),
    ],
)
def test_collectives_have_one_name_each(name, collective):
    assert collective_of_name(name) == collective


def test_a_kernel_s_own_arguments_describe_its_collective(imported):
    events = [
        *training(1),
        call("cudaLaunchKernelExC", 320, 3, 77, tid=101),
        kernel(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            340,
            50,
            77,
            stream=9,
            Collective_name="allreduce",
            In_msg_nelems=1000,
            Out_msg_nelems=1000,
            dtype="Float",
            Process_Group_Name="0",
            Group_size=2,
        ),
    ]
    trace = imported(events)
    line = np.flatnonzero(trace.is_kind("collective"))
    assert trace.values("collective", line) == ["all_reduce"]
    assert trace.values("elements", line) == [1000]
    assert trace.values("dtype", line) == ["float32"]
    assert trace.values("bytes", line) == [4000]
    assert trace.values("group", line) == ["0"]


def test_a_bare_collective_is_described_by_the_call_around_its_launch(imported):
    events = [
        op(
            "record_param_comms",
            10,
            50,
            External_id=1,
            Input_Dims=[[], [], []],
            Input_type=["TensorList", "Scalar", ""],
        ),
        note("nccl:all_to_all", 15, 40, External_id=2, Input_Dims=[[100, 3]], Input_type=["long int"]),
        call("cudaLaunchKernel", 20, 5, 7, External_id=2),
        kernel(
            "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", 40, 50, 7, stream=9, External_id=2
        ),
        kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 1, 2, 3, stream=9),
    ]
    trace = imported(events)
    orphan, line = np.flatnonzero(trace.is_kind("collective")).tolist()
    assert trace.values("collective", [orphan, line]) == ["all_reduce", "all_to_all"]
    assert trace.values("elements", [orphan, line]) == [None, 300]
    assert trace.values("bytes", [orphan, line]) == [None, 2400]
    assert trace.values("dtype", [line]) == ["int64"]


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)", "all_reduce"),
        ("void c10d::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(...)", "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(...)", "all_reduce"),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(...)", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(...)", "all_to_all"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(...)", "all_to_all"),
        ("void deep_ep::intranode::cached_notify_combine<2>(void**, int*, int)", "all_to_all"),
        ("mori::moe::EpDispatchIntraNodeKernel<hip_bfloat16>", "all_to_all"),
        ("hcom_reduceScatter__123_0", "reduce_scatter"),
        ("void c10d::symmetric_memory::barrier_kernel(unsigned int**, int)", "barrier"),
    ],
)
def test_kernels_that_communicate_by_themselves_are_collectives(imported, name, operation):
    trace = imported([call("cudaLaunchKernel", 0, 5, 1), kernel(name, 10, 20, 1)])
    assert trace.values("kind")[-1] == "collective"
    assert trace.values("collective")[-1] == operation


@pytest.mark.parametrize(
    "name",
    [
        "_combined_routing_compute",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(...)",
        "triton_poi_fused_all_reduce_wait_tensor_0",  # element-wise work that follows a collective
        "void softmax_kernel<float, BlockAllReduce<float> >(float*)",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(...)",  # counts tokens, on one device
        "void at::native::vectorized_gather_kernel<16, long>(...)",
        "gemm_allreduce_sm90_bf16",  # most of it is the product
    ],
)
def test_kernels_of_one_device_are_no_collectives(imported, name):
    trace = imported([call("cudaLaunchKernel", 0, 5, 1), kernel(name, 10, 20, 1)])
    assert trace.values("kind")[-1] == "kernel"


# Rows of one stream


@pytest.mark.parametrize(
    ("lasted", "kept"),
    [(900, 150), (160, 150), (152, 150), (150.5, 150.5), (149, 149)],  # the next begins 150 us behind
)
def test_a_kernel_ends_at_the_latest_where_the_next_of_its_stream_begins(imported, lasted, kept):
    calls = [call("cudaLaunchKernel", at, 5, at + 1) for at in (0, 150, 300)]
    work = [kernel("first", 10, lasted, 1), kernel("next", 160, 100, 151), kernel("last", 310, 400, 301)]
    trace = imported([op("aten::mm", 0, 320), *calls, *work])
    kernels = trace.is_kind("kernel")
    assert trace["duration_ns"][kernels].tolist() == [kept * 1000, 100_000, 400_000]
    over = (
        f"1 device task lasted into the next of the same stream, by {(lasted - kept) / 1000:,.3f} ms in total"
    )
    assert any(note.startswith(over) for note in trace.metadata["notes"]) == (kept < lasted)


@pytest.mark.parametrize("how", [{"stream": 8}, {"graph_id": 3}, {"correlation": 1}])
def test_what_may_run_side_by_side_keeps_its_time(imported, how):
    given = {"correlation": 2} | how
    work = [kernel("first", 10, 500, 1), kernel("next", 100, 100, **given)]
    work[0]["args"]["graph id"] = how.get("graph_id", -1)
    calls = [call("cudaGraphLaunch", 0, 5, 1), call("cudaLaunchKernel", 90, 5, 2)]
    trace = imported([op("aten::mm", 0, 320), *calls, *work])
    assert trace["duration_ns"][trace.is_kind("kernel")].tolist() == [500_000, 100_000]


def test_the_shared_overflowing_kernels_replay():
    replay = shared_replay("cases/symptoms/tracelens_669_kernel_dur_overflows_next.json")
    assert [step.measured_ns for step in replay.recording.steps] == [1_000_000] * 3
    assert replay.max_error < 1e-6
