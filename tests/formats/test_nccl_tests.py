"""Output of nccl-tests, as it prints it (figures made up)."""

import pytest

from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.nccl_tests import read_nccl_tests

LOG = """\
# nThread 1 nGpus 4 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid  10 on  node device  0 [0x07] A
#  Rank  3 Group  0 Pid  10 on  node device  3 [0x0b] A
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    10.50    0.00    0.00      0    10.20    0.00    0.00      0
     1048576        262144     float     sum      -1    50.00   20.97   31.46      0    49.00   21.40   32.10    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 15.7
"""


def write(tmp_path, text):
    (tmp_path / "log.txt").write_text(text)
    return tmp_path / "log.txt"


def test_a_log(tmp_path):
    found = read_nccl_tests(write(tmp_path, LOG), collective=CollectiveKind.ALL_REDUCE)
    assert found == {
        "collective": ["ALL_REDUCE"] * 2,
        "members": [4, 4],
        "total_bytes": [8, 1048576],
        "time_ns": [10_500, 50_000],
        "algbw_gb_per_s": [0, 20.97],
        "busbw_gb_per_s": [0, 31.46],
    }


def test_the_program_names_the_collective(tmp_path):
    found = read_nccl_tests(write(tmp_path, "$ ./build/reduce_scatter_perf -b 8\n" + LOG), members=2)
    assert (found["collective"][0], found["members"][0]) == ("REDUCE_SCATTER", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "which collective"),
        ("all_reduce_perf", "how many ranks"),
        ("all_reduce_perf, 4 ranks", "no result"),
        ('{"version": "all_reduce_perf, 2 ranks"}', "no JSON of nccl-tests"),
    ],
)
def test_what_is_missing_is_said(tmp_path, text, says):
    with pytest.raises(InputError, match=says):
        read_nccl_tests(write(tmp_path, text))


def test_files_that_are_no_text(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="no text"):
        read_nccl_tests(tmp_path / "x")
    with pytest.raises(InputError, match="cannot be read"):
        read_nccl_tests(tmp_path / "none")
