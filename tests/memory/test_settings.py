"""PYTORCH_CUDA_ALLOC_CONF, as PyTorch reads it."""

from __future__ import annotations

import pytest

from daydream.errors import DaydreamError
from daydream.memory.settings import Settings, settings_of, settings_text

MIB = 1 << 20
LISTED = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"

LEGAL = {
    "": Settings(),
    "expandable_segments:True": Settings(expandable_segments=True),
    "expandable_segments:True,max_split_size_mb:128": Settings(True, 128 * MIB),
    " max_split_size_mb : 20 , ": Settings(max_split_bytes=20 * MIB),
    "garbage_collection_threshold:0.8": Settings(garbage_collection_threshold=0.8),
    "roundup_power2_divisions:4": Settings(roundup_divisions=(4,) * 16),
    "large_segment_size_mb:32,max_split_size_mb:64": Settings(
        large_segment_bytes=32 * MIB, max_split_bytes=64 * MIB
    ),
    "max_non_split_rounding_mb:30": Settings(max_non_split_rounding_bytes=30 * MIB),
    "per_process_memory_fraction:0.5": Settings(memory_fraction=0.5),
    "backend:native,pinned_use_background_threads:True,release_lock_on_cudamalloc:True": Settings(),
    # Up to 64 MiB 8 steps, then as listed, above 1 GiB none: c10's own test of the list.
    LISTED: Settings(roundup_divisions=(*[8] * 7, 2, 4, 2, 4, *[1] * 5)),
}
WRONG = {
    "expandable_segments": "not an allocator setting",
    "expandable_segments:true": "True or False was needed",
    "expandable_segment:True": "Did you mean 'expandable_segments'",
    "fast:True": "unknown allocator setting 'fast'",
    "max_split_size_mb:19": "at least 20",
    "max_split_size_mb:-1": "a whole number was needed",
    "max_split_size_mb:12.5": "a whole number was needed",
    "max_split_size_mb:": "not an allocator setting",
    "large_segment_size_mb:30,max_split_size_mb:25": "at least 30",
    "large_segment_size_mb:10": "more than 10",
    "max_non_split_rounding_mb:19": "at least 20",
    "garbage_collection_threshold:1.0": "between 0 and 1",
    "garbage_collection_threshold:nan": "between 0 and 1",
    "roundup_power2_divisions:3": "a power of two",
    "roundup_power2_divisions:0": "a power of two",
    "roundup_power2_divisions:[100:2]": "a power of two",
    "roundup_power2_divisions:[256:1,512:2": "closing bracket",
    "backend:cudaMallocAsync": "only the backend native",
    "per_process_memory_fraction:2": "between 0 and 1",
}


@pytest.mark.parametrize("text", LEGAL)
def test_settings_are_read(text):
    assert settings_of(text) == LEGAL[text]


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_is_refused_in_one_line(text):
    with pytest.raises(DaydreamError) as error:
        settings_of(text)
    assert WRONG[text] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", LEGAL)
def test_settings_are_told_as_they_are_typed(text):
    assert settings_of(settings_text(LEGAL[text])) == LEGAL[text]


@pytest.mark.parametrize("text", [*LEGAL, *WRONG])
def test_pytorch_accepts_and_refuses_the_same(text):
    torch = pytest.importorskip("torch")
    read = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if read is None:
        pytest.skip("this version of torch reads its settings elsewhere")
    later = ("max_split_size_mb:-1", "large_segment", "per_process", "backend", "expandable_segment:", "fast")
    if text.startswith(later) or text.endswith(", ") or not text:
        pytest.skip("another part of torch reads this, or it is left to that part to refuse")
    try:
        read(text)
        accepted = True
    except (ValueError, RuntimeError):
        accepted = False
    finally:
        read("max_split_size_mb:20")  # leave nothing behind that a later test could meet
    assert accepted == (text in LEGAL)
