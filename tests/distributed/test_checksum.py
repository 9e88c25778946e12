"""CRC-32C against RFC 3720's examples and against its definition, a table."""

from __future__ import annotations

import random
import threading
import time

import pytest
from warptape._C import _distributed as _C

FUNCTIONS = [_C._crc32c, _C._crc32c_by_table]
READ_COMMAND = (
    "01c00000" + 3 * "00000000" + "1400000000000400000000140000001828000000000000000200000000000000"
)
EXAMPLES = {  # RFC 3720, B.4; and the check value that lists of checksums have
    b"\0" * 32: 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    bytes.fromhex(READ_COMMAND): 0xD9963A56,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize("crc", FUNCTIONS)
@pytest.mark.parametrize("data", EXAMPLES)
def test_examples(crc, data):
    assert crc(data) == EXAMPLES[data]


def test_any_size_and_place_is_as_by_the_table():
    rng = random.Random(0)
    data = memoryview(rng.randbytes(1 << 20))
    sizes = [rng.randrange(2000) for _ in range(300)] + [rng.randrange(600_000) for _ in range(30)]
    for size in [*range(40), 767, 768, 769, 3 * 65536 - 1, 3 * 65536, 6 * 65536, *sizes]:
        at, before = rng.randrange(64), rng.getrandbits(32)
        part = data[at : at + size]
        assert _C._crc32c(part, before) == _C._crc32c_by_table(part, before), (at, size)


def test_of_parts_is_of_the_whole_and_sees_each_bit():
    data = bytearray(random.Random(1).randbytes(300_000))
    whole = _C._crc32c(data)
    for cut in (0, 1, 7, 200_001, len(data)):
        assert _C._crc32c(data[cut:], _C._crc32c(data[:cut])) == whole
    for at in range(0, len(data), 9973):
        for bit in range(8):
            data[at] ^= 1 << bit
            assert _C._crc32c(data) != whole
            data[at] ^= 1 << bit


def test_others_run_while_it_computes():
    """The interpreter's lock is not held: a thread that waits for it moves on."""
    data, seen, over = bytearray(256 << 20), [0.0], threading.Event()

    def count() -> None:
        while not over.is_set():
            seen.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    start = time.perf_counter()
    _C._crc32c_by_table(data)
    third = (time.perf_counter() - start) / 3
    over.set()
    counter.join()
    assert sum(start + third < at < start + 2 * third for at in seen) > 100


@pytest.mark.parametrize(
    "wrong", ["text", None, 5, memoryview(bytes(8)).cast("i"), memoryview(bytes(8))[::2]]
)
def test_only_contiguous_bytes(wrong):
    with pytest.raises((TypeError, ValueError, BufferError)):
        _C._crc32c(wrong)
