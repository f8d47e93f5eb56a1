"""Synchronization rows of Nsight Systems exports: which wait each is, and what it waits for."""

import pytest
from nsys_database import COPY, call, kernel, names_of, read, record, rows_of, sync


@pytest.mark.parametrize(
    ("of_type", "name"),
    [(1, "Event Sync"), (2, "Stream Wait Event"), (3, "Stream Sync"), (4, "Context Sync")],
)
def test_a_sync_row_is_named_by_its_type(tmp_path, of_type, name):
    # the type says more than the call: a copy may wait for a stream
    recording = read(
        tmp_path,
        {
            "SYNCHRONIZATION": [sync(2, 8, 1, syncType=of_type, streamId=7)],
            "RUNTIME": [call(0, 9, 1, COPY)],
        },
    )

    assert rows_of(recording, "kind", "name", "start_ns", "duration_ns", "stream", "correlation")[1] == (
        "sync",
        name,
        2,
        6,
        7,
        1,
    )


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("cudaDeviceSynchronize_v3020", "Context Sync"),
        ("cudaStreamSynchronize_v3020", "Stream Sync"),
        ("cudaEventSynchronize_v3020", "Event Sync"),
        ("cudaStreamWaitEvent_v3020", "Stream Wait Event"),
    ],
)
def test_a_sync_row_without_a_type_is_named_by_its_call(tmp_path, called, name):
    recording = read(tmp_path, {"SYNCHRONIZATION": [sync(2, 8, 1)], "RUNTIME": [call(0, 9, 1, called)]})

    assert names_of(recording, "sync") == [name]


def test_a_sync_row_without_type_and_call_is_named_by_the_older_type_or_its_ids(tmp_path):
    older = [sync(i, i + 1, i, deprecatedSyncType=i, streamId=7) for i in range(3)]
    bare = [
        sync(10, 11, 10, deprecatedSyncType=None, eventId=5, streamId=7),
        sync(12, 13, 12, deprecatedSyncType=None, streamId=7),
        sync(14, 15, 14, deprecatedSyncType=None),
    ]
    recording = read(tmp_path, {"SYNCHRONIZATION": older + bare, "RUNTIME": [call(50, 51, 99, COPY)]})

    assert names_of(recording, "sync") == [
        "Context Sync",
        "Event Sync",
        "Stream Sync",
        "Event Sync",
        "Stream Sync",
        "Context Sync",
    ]


def test_a_sync_row_is_on_the_device_of_its_context(tmp_path):
    recording = read(
        tmp_path,
        {
            "KERNEL": [kernel(0, 5, 1, deviceId=0, contextId=1), kernel(0, 5, 2, deviceId=1, contextId=2)],
            "SYNCHRONIZATION": [
                sync(10, 11, 3, contextId=2),
                sync(12, 13, 4, contextId=1),
                sync(14, 15, 5, contextId=9),
            ],
        },
    )

    assert [device for kind, device in rows_of(recording, "kind", "device") if kind == "sync"] == [
        1,
        0,
        0,
    ]


def test_a_query_is_no_wait(tmp_path):
    recording = read(
        tmp_path,
        {
            "SYNCHRONIZATION": [sync(2, 3, 1, syncType=1, eventId=4)],
            "RUNTIME": [call(0, 9, 1, "cudaEventQuery_v3020")],
        },
    )

    assert names_of(recording, "sync") == ["Event Query"]
    assert recording.metadata["notes"] == []


def waits_and_records(**numbers):
    #  record A(10)  record B(20)  wait A(30)  record A again(40)  wait A(50)  wait C(60)
    record_again, first, second = numbers.get("sync_ids", [None, None, None])
    return {
        "RUNTIME": [
            call(10, 11, 1, "cudaEventRecord_v3020"),
            call(20, 21, 2, "cudaEventRecord_v3020"),
            call(30, 31, 3, "cudaStreamWaitEvent_v3020"),
            call(40, 41, 4, "cudaEventRecord_v3020"),
            call(50, 51, 5, "cudaStreamWaitEvent_v3020"),
            call(60, 61, 6, "cudaEventSynchronize_v3020"),
        ],
        "CUDA_EVENT": [
            record(1, 100, 7, eventSyncId=first),
            record(2, 200, 8, eventSyncId=first),
            record(4, 100, 9, eventSyncId=record_again),
        ],
        "SYNCHRONIZATION": [
            sync(30, 31, 3, streamId=13, eventId=100, syncType=2, eventSyncId=first),
            sync(50, 51, 5, streamId=13, eventId=100, syncType=2, eventSyncId=second),
            sync(60, 61, 6, eventId=300, syncType=1, eventSyncId=first),
        ],
    }


def waits_of(recording):
    rows = rows_of(recording, "kind", "stream", "wait_stream", "wait_correlation")
    assert recording.metadata["notes"] == [
        "1 of 3 waits for an event have no record of the event in the file."
    ]
    return [row[1:] for row in rows if row[0] == "sync"]


def test_a_wait_is_for_the_latest_record_of_its_event_before_it(tmp_path):
    tables = waits_and_records()
    tables["CUPTI_ACTIVITY_KIND_CUDA_EVENT"] = tables.pop("CUDA_EVENT")

    assert waits_of(read(tmp_path, tables, version="3.17.2")) == [(13, 7, 1), (13, 9, 4), (None, None, None)]


def test_numbered_records_are_told_apart_by_their_number(tmp_path):
    # the second wait is for the first record, though the event was recorded again before it
    tables = waits_and_records(sync_ids=[72, 71, 71])
    assert waits_of(read(tmp_path, tables, version="3.25.0")) == [
        (13, 7, 1),
        (13, 7, 1),
        (None, None, None),
    ]
