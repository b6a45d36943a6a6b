"""What happens when a run goes wrong: killed, stopped, stuck, interrupted; and that nothing is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import addresses, compute, receive, ring_job, schedule, send

from genie.core.timeline import UNKNOWN, Status
from genie.errors import InternalError, NotReadyError, RunError
from genie.replay.agent import AgentPlan
from genie.replay.launcher import LaunchOptions, launch
from genie.replay.local import Place, ReplayOptions, replay, run_in_process
from genie.replay.ranks import fork, thread
from genie.replay.transports.memory import Hub, MemoryTransport

LONG_US = 20_000_000
IMPATIENT = LaunchOptions(warmup=0, repeats=2, stall_timeout_s=0.4, silence_timeout_s=0.8)


@pytest.fixture(autouse=True)
def _no_child_is_left():
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


class Victims:
    """Ranks' process ids, learnt from the ranks themselves; `strike` sends one of them a signal when all have begun."""

    def __init__(self, ranks):
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.ranks, self.pids = ranks, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._read)
        os.close(self._write)

    def _enter(self, rank):
        return lambda: os.write(self._write, f"{rank} {os.getpid()}\n".encode())

    def places(self):
        return [Place(address, self._enter(rank)) for rank, address in enumerate(addresses(self.ranks))]

    def learn(self):
        with contextlib.suppress(BlockingIOError):
            for line in os.read(self._read, 1 << 16).splitlines():
                rank, pid = map(int, line.split())
                self.pids[rank] = pid

    def strike(self, rank, number, after_s=0.2):
        """What a replay calls with its progress; strikes some time after the run began."""
        begun_s = []

        def watch(_):
            self.learn()
            begun_s.append(time.monotonic())
            if begun_s[-1] - begun_s[0] >= after_s and rank in self.pids:
                os.kill(self.pids.pop(rank), number)

        return watch


def waiting_for_rank_2():
    """Rank 2 computes for long; the others wait for it, one through the other."""
    return schedule(
        [compute(10), receive(1, 64, [0])],
        [receive(2, 64), send(0, 64, [0])],
        [compute(LONG_US), send(1, 64, [0])],
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_rank_is_named_with_who_waits_for_it(number):
    with Victims(3) as victims:
        begun_s = time.monotonic()
        result = replay(
            waiting_for_rank_2(), victims.places(), ReplayOptions(launch=IMPATIENT), victims.strike(2, number)
        )
    assert time.monotonic() - begun_s < 5
    assert isinstance(result.error, RunError)
    text = str(result.error)
    assert f"was killed by {number.name}" in text
    assert "rank 2: rank 2 (process " in text
    assert "all wait in the end for rank 2, which does not answer" in text
    assert "rank 0 waits in node 1 (recv) for 64 bytes from rank 1" in text
    assert result.timeline.status is Status.FAILED


def test_what_was_measured_before_a_rank_died_is_kept():
    with Victims(3) as victims:
        result = replay(
            waiting_for_rank_2(), victims.places(), ReplayOptions(launch=IMPATIENT), victims.strike(2, signal.SIGKILL)
        )
    operators = result.timeline.operators
    rank0 = operators.take(operators.rank == 0)
    assert rank0.node_id.tolist() == [0, 1]
    assert rank0.done_ns.tolist() == [10_000, UNKNOWN]
    assert set(operators.rank.tolist()) == {0, 1}
    assert set(result.timeline.ranks.finish_ns.tolist()) == {UNKNOWN}


def test_a_stopped_rank_is_named():
    with Victims(3) as victims:
        begun_s = time.monotonic()
        result = replay(
            waiting_for_rank_2(), victims.places(), ReplayOptions(launch=IMPATIENT), victims.strike(2, signal.SIGSTOP)
        )
    assert time.monotonic() - begun_s < 5
    text = str(result.error)
    assert "not heard of for" in text
    assert "rank 2 (process " in text
    assert "all wait in the end for rank 2, which does not answer" in text
    assert result.timeline.status is Status.FAILED


def test_a_rank_that_dies_between_iterations_is_named():
    job = ring_job(ranks=3, us=1)
    with Victims(3) as victims:
        watch = victims.strike(1, signal.SIGKILL, after_s=0.0)
        options = ReplayOptions(launch=LaunchOptions(warmup=0, repeats=1000, silence_timeout_s=0.8))
        result = replay(job, victims.places(), options, watch)
    assert "rank 1 (process " in str(result.error)
    assert "was killed by SIGKILL" in str(result.error)
    assert result.timeline.status is Status.FAILED


def test_a_slow_compute_is_no_stall():
    job = schedule([compute(900_000), send(1, 64, [0])], [receive(0, 64)])
    result = replay(job, [Place(address) for address in addresses(2)], ReplayOptions(launch=IMPATIENT))
    assert result.error is None
    assert result.timeline.status is Status.OK


@pytest.mark.parametrize("run", [replay, None], ids=["processes", "threads"])
def test_ranks_that_wait_for_each_other_are_named_in_a_ring(run):
    job = schedule(
        [receive(1, 64, tag=5), send(2, 64, [0])],
        [receive(2, 64), send(0, 64, [0], tag=5)],
        [receive(0, 64), send(1, 64, [0])],
        [compute(3)],
    )
    options = ReplayOptions(launch=IMPATIENT)
    begun_s = time.monotonic()
    result = replay(job, [Place(a) for a in addresses(4)], options) if run else run_in_process(job, options)
    assert time.monotonic() - begun_s < 4
    text = str(result.error)
    assert "nothing has moved for" in text
    assert "ranks wait for each other, 0 -> 1 -> 2 -> 0 (" in text
    assert "rank 0 waits in node 0 (recv) for 64 bytes from rank 1 (tag 5)" in text
    assert result.timeline.ranks.finish_ns.tolist().count(3_000) == 1


class Broken:
    """An engine with a bug."""

    def step(self, event):
        raise ZeroDivisionError(f"in {type(event).__name__}")

    def running(self):
        return []


class Stuck(Broken):
    """An engine that forgot what it was waiting for."""

    def step(self, _):
        return []

    def running(self):
        return [3]


def plans(count, make_engine, **options):
    hub = Hub()
    return [
        AgentPlan(rank, make_engine, lambda rank=rank: MemoryTransport(rank, hub), **options) for rank in range(count)
    ]


@pytest.mark.parametrize("spawn", [fork, thread])
def test_a_bug_in_a_rank_is_told_as_ours(spawn):
    outcome = launch(plans(1, Broken), LaunchOptions(0, 1), spawn=spawn)
    assert isinstance(outcome.error, InternalError)
    assert "ZeroDivisionError at test_launcher.py:" in outcome.error.what
    assert "in Start" in outcome.error.what
    assert outcome.error.where == "rank 0"
    assert outcome.status is Status.FAILED


@pytest.mark.parametrize("spawn", [fork, thread])
def test_an_engine_that_waits_for_nothing_is_found(spawn):
    outcome = launch(plans(1, Stuck), IMPATIENT, spawn=spawn)
    assert "nothing has moved" in outcome.error.what
    assert "no rank waits for a message (rank 0 waits in operator 3 for no message)." in outcome.error.what


def test_a_host_that_cannot_be_entered_is_an_unready_machine():
    def enter():
        raise NotReadyError("no such namespace.", fix="make one.")

    outcome = launch(plans(2, Stuck, enter=enter), IMPATIENT)
    assert isinstance(outcome.error, NotReadyError)
    assert str(outcome.error) == f"rank {outcome.error.where[-1]}: no such namespace. Fix: make one."


def test_a_refusal_of_the_system_is_a_failed_run():
    def enter():
        raise PermissionError(1, "Operation not permitted")

    outcome = launch(plans(1, Stuck, enter=enter), IMPATIENT)
    assert isinstance(outcome.error, RunError)
    assert "Operation not permitted" in outcome.error.what


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from jobs import compute, schedule
from genie.replay.launcher import LaunchOptions
from genie.replay.local import Place, ReplayOptions, replay
import os

def place(rank):
    return Place(f"127.0.0.{{rank + 1}}", lambda: os.write(1, b"%d\\n" % os.getpid()))

job = schedule(*([compute(1000), compute({us}, [0])] for _ in range(3)))
said = []
def watch(progress):
    if not said:
        said.append(print("running", flush=True))

result = replay(job, [place(rank) for rank in range(3)], ReplayOptions(launch=LaunchOptions(0, 2)), watch)
print(result.timeline.status.value, sorted(result.timeline.operators.done_ns.tolist()), result.error)
"""


@contextlib.contextmanager
def launched():
    """A launcher in a process of its own, in the middle of a run: (process, pids of its ranks)."""
    script = SCRIPT.format(path=[str(Path(__file__).parent)], us=LONG_US)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline().strip() for _ in range(4)]
            yield process, [int(line) for line in lines if line.isdigit()]
        finally:
            process.kill()


def wait_until_gone(pids, within_s=5.0):
    """Pids of processes that still live after some time (one that is dead but not yet collected does not live)."""
    deadline_s = time.monotonic() + within_s
    while (left := [pid for pid in pids if lives(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return left


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ranks_die_with_their_launcher():
    with launched() as (process, pids):
        assert len(pids) == 3
        assert all(lives(pid) for pid in pids)
        process.kill()
        process.wait()
        assert wait_until_gone(pids) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_with_what_was_measured(number):
    with launched() as (process, pids):
        begun_s = time.monotonic()
        process.send_signal(number)
        said = process.stdout.read()
        assert process.wait() == 0
        assert time.monotonic() - begun_s < 4
        assert said == (
            f"partial [-1, -1, -1, 1000000, 1000000, 1000000] interrupted ({number.name}); "
            "what had been measured is kept.\n"
        )
        assert wait_until_gone(pids, 0.0) == []


def test_ranks_have_sessions_of_their_own():
    with launched() as (_, pids):
        assert [os.getsid(pid) for pid in pids] == pids
