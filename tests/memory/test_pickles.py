"""Pickles: plain containers come out, everything else is refused before it can run."""

import contextlib
import os
import pickle
import pickletools
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daydream.errors import TraceError
from daydream.memory.pickles import plain_pickle

PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text()
    ),
    lambda inside: st.one_of(
        st.lists(inside), st.tuples(inside, inside), st.dictionaries(st.text(), inside), st.tuples(inside)
    ),
    max_leaves=30,
)  # fmt: skip


class Calls:
    """What a pickle makes of this calls a function when it is loaded."""

    def __init__(self, function, *args):
        self.how = function, args

    def __reduce__(self):
        return self.how


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_out_as_they_went_in(value, protocol):
    assert plain_pickle(pickle.dumps(value, protocol), "x") == value


def touch(path):
    return Calls(os.mkdir, str(path))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path, protocol):
    data = pickle.dumps({"segments": [], "device_traces": [touch(tmp_path / "made")]}, protocol)

    with pytest.raises(TraceError, match=r"refused|damaged"):
        plain_pickle(data, "x")
    assert not (tmp_path / "made").exists()


OPCODES = {
    "GLOBAL": b"\x80\x02cos\nsystem\n.",
    "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "REDUCE": b"\x80\x02)R.",
    "BUILD": b"\x80\x02}}b.",
    "INST": b"\x80\x02(ios\nsystem\n.",
    "OBJ": b"\x80\x02(o.",
    "NEWOBJ": b"\x80\x02))\x81.",
    "NEWOBJ_EX": b"\x80\x04))}\x92.",
    "EXT1": b"\x80\x02\x82\x01.",
    "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": b"\x80\x02Pfile\n.",
    "BINPERSID": b"\x80\x02K\x01Q.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "INT": b"\x80\x02I" + b"9" * 5000 + b"\n.",
    "DUP": b"\x80\x02]2.",
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 60) + b".",
    "0xff": b"\x80\x02\xff.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_opcodes_that_make_no_plain_values_are_refused_by_name(name):
    with pytest.raises(
        TraceError, match=rf"t\.pickle: refused, since its pickle has the opcode {name} at byte"
    ):
        plain_pickle(OPCODES[name], "t.pickle")


def test_all_opcodes_are_known_to_be_plain_or_refused():
    plain = {
        "MARK", "STOP", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "APPEND", "APPENDS",
        "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "MEMOIZE",
        "PROTO", "BININT", "BININT1", "BININT2", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "BINFLOAT",
        "FRAME", "LONG1", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES",
    }  # fmt: skip
    for opcode in pickletools.opcodes:
        if opcode.name not in plain:
            with pytest.raises(TraceError, match=f"opcode {opcode.name} "):
                plain_pickle(b"\x80\x04" + opcode.code.encode("latin-1") + b"\0" * 16 + b".", "x")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04",
        b"\x80\x04]",
        b"\x80\x04a.",
        b"\x80\x04h\x07.",
        b"\x80\x04X\xff\xff\xff\x7f.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"\x80\x04G\x00",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"].",
        b"\x80\x04(((((.",
        b"\x80\x04}]]s.",
        b"\x80\x63].",
        b"\x80\x04\x8c\x02\xff\xfe.",
        b"\x80\x04]r\xff\xff\xff\x7f.",  # a list of places of two thousand million
    ],
)
def test_damaged_pickles_are_refused_in_one_line(data):
    with pytest.raises(TraceError) as error:
        plain_pickle(data, "t.pickle")
    assert str(error.value).startswith("t.pickle: the pickle is damaged")
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data):
    start = time.process_time()
    with contextlib.suppress(TraceError):
        plain_pickle(b"\x80\x04" + data, "x")
    assert time.process_time() - start < 5


def test_deep_nesting_is_read_or_refused():
    data = b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b"."
    depth, inner = 0, plain_pickle(data, "x")
    while inner:
        depth, inner = depth + 1, inner[0]
    assert depth == 199_999
