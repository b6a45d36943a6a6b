import gzip
import os

import pytest

from genie.errors import InputError
from genie.formats import frames
from genie.formats.chakra_writer import write_trace
from genie.formats.frames import pack, read_frames, varint
from genie.patterns import generate


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.0.et"


def test_frames_and_their_places(path):
    contents = [b"", b"abc", bytes(200), b"x" * 20_000]
    path.write_bytes(pack(contents))
    found = read_frames(path)
    assert [found.content(k) for k in range(len(found))] == contents
    assert found.offset.tolist() == [0, 1, 5, 207]
    assert found.where(2) == f"{path}, frame 2, byte 5"


def test_truncation_at_every_byte_is_an_error_but_between_frames(path):
    write_trace(path, generate("data_parallel", 2, 4096).traces[0])
    whole = path.read_bytes()
    ends = set(read_frames(path).stop.tolist())
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        if cut in ends:
            assert read_frames(path).stop[-1] == cut
        else:
            with pytest.raises(InputError, match=r"frame \d+, byte \d+: frame \d+ is cut off"):
                read_frames(path)


@pytest.mark.parametrize("length", [1 << 31, (1 << 63) + 5, (1 << 64) - 1])
def test_a_huge_length_takes_no_memory(path, length):
    path.write_bytes(b"\x00" + varint(length) + b"rest")
    with pytest.raises(
        InputError, match="frame 1, byte 1: frame 1 is cut off or damaged: it is longer than the 4 bytes"
    ):
        read_frames(path)


def test_a_length_that_does_not_end(path):
    for data in (b"\x80", b"\x80\x80", b"\x80" * 12):
        path.write_bytes(data)
        with pytest.raises(InputError, match="its length does not end"):
            read_frames(path)


def test_an_empty_file(path):
    path.write_bytes(b"")
    with pytest.raises(InputError, match="is empty"):
        read_frames(path)


def test_what_is_no_regular_file(tmp_path, path):
    os.mkfifo(path)
    for place in (path, tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="no regular file"):
            read_frames(place)


def test_a_missing_file(path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_frames(path)


def test_the_file_is_not_written(path):
    path.write_bytes(pack([b"", b"abc"]))
    path.chmod(0o400)
    before = path.stat()
    read_frames(path)
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)


def test_gzip_is_known_by_its_first_bytes(path):
    path.write_bytes(gzip.compress(pack([b"", b"abc"])))
    assert read_frames(path).content(1) == b"abc"


def test_a_damaged_gzip_stream_at_every_cut(path):
    packed = gzip.compress(pack([b"", bytes(range(256))]))
    for cut in range(2, len(packed)):
        path.write_bytes(packed[:cut])
        with pytest.raises(InputError, match=r"gzip stream is damaged|is empty"):
            read_frames(path)
    path.write_bytes(packed[:-6] + bytes(6))
    with pytest.raises(InputError, match="gzip stream is damaged"):
        read_frames(path)


def test_a_gzip_bomb_is_stopped(path):
    path.write_bytes(gzip.compress(bytes(64 << 20)))
    with pytest.raises(InputError, match="no trace does"):
        read_frames(path)


def test_sizes_are_bounded_before_memory_is_taken(path, monkeypatch):
    path.write_bytes(pack([b"", b"abc"]))
    monkeypatch.setattr(frames, "MAX_FILE_BYTES", 3)
    with pytest.raises(InputError, match="larger than"):
        read_frames(path)
