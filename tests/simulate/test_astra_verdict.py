import pytest
from astra_fake import OUTPUTS

from genie.errors import InputError, NotReadyError, RunError
from genie.simulate.astra_parse import Finish, Spoken, read_spoken
from genie.simulate.astra_process import Ended, Limits
from genie.simulate.astra_verdict import judge


def verdict(case, ranks):
    folder = OUTPUTS / case
    ended = Ended(int((folder / "exit_code").read_text()), 1.0)
    return judge(ended, read_spoken(folder / "stdout.txt", folder / "stderr.txt"), ranks, Limits(), folder)


@pytest.mark.parametrize("case", ["data_parallel_unaware", "incast_aware", "all_reduce_htsim"])
def test_good_runs_are_good(case):
    assert verdict(case, 4) is None


@pytest.mark.parametrize(
    ("case", "ranks", "kind", "said"),
    [
        ("missing_participant", 4, InputError, "1 of 4 ranks finished: rank 0 waits for ever in node 0"),
        ("receive_without_send", 2, InputError, "1 of 2 ranks finished: rank 0 waits"),
        ("swallowed", 4, InputError, "caught an error"),
        ("no_splits", 4, RunError, "preferred-dataset-splits"),
        ("metadata_node", 2, InputError, "METADATA"),
        ("cycle", 2, InputError, "cycle"),
        ("ring_of_two_aware", 2, InputError, "FullyConnected"),
        ("two_dimensions_aware", 4, InputError, "one dimension"),
        ("zero_delay", 4, InputError, "endpoint-delay"),
        ("missing_trace", 8, InputError, "a trace is missing"),
    ],
)
def test_real_failures_get_a_sentence_and_a_remedy(case, ranks, kind, said):
    error = verdict(case, ranks)
    assert type(error) is kind
    assert said in str(error)
    assert error.fix


def test_exit_code_0_with_a_rank_missing_is_no_success():
    spoken = Spoken(finished={0: Finish(10, 0)})
    error = judge(Ended(0, 1.0), spoken, 2, Limits(), OUTPUTS)
    assert isinstance(error, InputError)
    assert "rank 1 waits" in str(error)


@pytest.mark.parametrize(
    ("code", "complaint", "kind", "said"),
    [
        (134, "what():  std::bad_alloc", RunError, "out of memory"),
        (139, "", RunError, "crashed"),
        (-9, "", RunError, "SIGKILL"),
        (127, "x: error while loading shared libraries: libprotobuf.so.32", NotReadyError, "library"),
        (3, "", RunError, "code 3"),
    ],
)
def test_crashes(code, complaint, kind, said):
    spoken = Spoken(complaints=[complaint] if complaint else [])
    error = judge(Ended(code, 1.0), spoken, 2, Limits(), OUTPUTS)
    assert isinstance(error, kind)
    assert said in str(error)


def test_statistics_that_err_after_the_end_do_no_harm():
    said = Spoken(
        finished={0: Finish(1, 0)}, swallowed=["Only GPU and COMM types are supported for overlap extraction"]
    )
    assert judge(Ended(0, 1.0), said, 1, Limits(), OUTPUTS) is None
    error = judge(Ended(0, 1.0), said, 2, Limits(), OUTPUTS)
    assert isinstance(error, RunError)
    assert "a bug of its own" in str(error)


def test_all_finished_but_a_crash_at_the_end_is_no_success():
    spoken = Spoken(finished={0: Finish(1, 0)})
    assert isinstance(judge(Ended(-11, 1.0), spoken, 1, Limits(), OUTPUTS), RunError)


def test_time_limit():
    error = judge(Ended(-15, 2.0, timed_out=True), Spoken(), 2, Limits(2.0), OUTPUTS)
    assert isinstance(error, RunError)
    assert "stopped after 2 s; 0 of 2" in str(error)
