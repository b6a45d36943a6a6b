"""When a byte was here: the kernel's word is taken only where it can be true."""

import os
import socket
import statistics
import struct
import time

import pytest

from genie.replay.clock import ManualClock, realtime_offset_ns
from genie.replay.transports.stamps import SO_TIMESTAMPNS, StampedSocket

START_NS = 10**9
LATENCY_NS = 50_000


class Kernel:
    """A socket whose reads, stamps and counters are written down; time stands still but for `clock`."""

    def __init__(self, clock):
        self.clock = clock
        self.offset_ns = realtime_offset_ns()
        self.reads = []
        self.out_of_order = 0
        self.info_bytes = 228

    def setsockopt(self, *option):
        assert option == (socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recvmsg_into(self, buffers, *_):
        result = self.reads.pop(0) if self.reads else BlockingIOError()
        if isinstance(result, Exception):
            raise result
        count, stamp_ns = result
        ancillary = []
        if stamp_ns is not None:
            data = struct.pack("=qq", *divmod(stamp_ns + self.offset_ns, 10**9))
            ancillary = [(socket.IPPROTO_IP, SO_TIMESTAMPNS, data), (socket.SOL_SOCKET, SO_TIMESTAMPNS, data)]
        return min(count, len(buffers[0])), ancillary, 0, None

    def getsockopt(self, level, option, size):
        assert (level, option, size) == (socket.IPPROTO_TCP, socket.TCP_INFO, 228)
        return struct.pack("=224xI", self.out_of_order)[: self.info_bytes]


@pytest.fixture
def kernel():
    return Kernel(ManualClock(START_NS))


@pytest.fixture
def stamped(kernel, monkeypatch):
    monkeypatch.setattr("genie.replay.transports.stamps.realtime_offset_ns", lambda: kernel.offset_ns)
    return StampedSocket(kernel, kernel.clock.now_ns)


def read(stamped, kernel, stamp_ns, count=10, after_ns=0):
    kernel.clock.advance_ns(after_ns)
    kernel.reads.append((count, stamp_ns))
    assert stamped.read(memoryview(bytearray(10))) == count
    return stamped.stamp_ns


def test_the_kernel_stamp_counts(stamped, kernel):
    assert stamped.stamp_ns == -1
    assert read(stamped, kernel, START_NS + 5, after_ns=LATENCY_NS) == START_NS + 5


def test_without_a_stamp_now_counts(stamped, kernel):
    assert read(stamped, kernel, None, after_ns=LATENCY_NS) == START_NS + LATENCY_NS


def test_a_byte_that_could_not_be_read_before_was_not_here_before(stamped, kernel):
    kernel.clock.advance_ns(10 * LATENCY_NS)
    assert stamped.read(memoryview(bytearray(10))) == 0
    assert stamped.drained
    now_ns = START_NS + 20 * LATENCY_NS
    assert read(stamped, kernel, START_NS + LATENCY_NS, after_ns=10 * LATENCY_NS) == now_ns


def test_a_short_read_proves_as_much_as_an_empty_one(stamped, kernel):
    read(stamped, kernel, START_NS + 5, count=9, after_ns=LATENCY_NS)
    assert stamped.drained
    assert read(stamped, kernel, START_NS + 6, after_ns=LATENCY_NS) == START_NS + 2 * LATENCY_NS
    assert not stamped.drained


def test_stamps_never_go_back(stamped, kernel):
    read(stamped, kernel, START_NS + 100, after_ns=LATENCY_NS)
    assert read(stamped, kernel, START_NS + 50) == START_NS + 100


@pytest.mark.parametrize("step_ns", [3 * 10**9, -3 * 10**9])
def test_a_clock_that_was_set_is_measured_anew(stamped, kernel, step_ns):
    kernel.offset_ns += step_ns
    assert read(stamped, kernel, START_NS + 5, after_ns=LATENCY_NS) == START_NS + LATENCY_NS
    later_ns = START_NS + LATENCY_NS + 7
    assert read(stamped, kernel, later_ns, after_ns=LATENCY_NS) == later_ns


def test_packets_out_of_order_are_told_once(stamped, kernel):
    assert not stamped.reordered()
    kernel.out_of_order = 3
    assert stamped.reordered()
    assert not stamped.reordered()


def test_an_old_kernel_does_not_tell(stamped, kernel):
    kernel.out_of_order, kernel.info_bytes = 3, 104
    assert not stamped.reordered()


@pytest.mark.parametrize(
    ("result", "told"), [((0, None), "it closed the connection"), (ConnectionResetError(104, ""), os.strerror(104))]
)
def test_the_end_is_told(stamped, kernel, result, told):
    kernel.reads.append(result)
    assert stamped.read(memoryview(bytearray(10))) == 0
    assert (stamped.ended, stamped.drained) == (told, True)


def test_a_real_kernel_stamps_when_the_packet_came():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with ours, theirs:
        ours.settimeout(0)
        stamped = StampedSocket(ours, time.monotonic_ns)
        delays_ns = []
        for _ in range(10):  # if no other socket wanted stamps, the kernel needs some ms to begin
            theirs.sendall(b"early")
            sent_ns = time.monotonic_ns()
            time.sleep(0.02)
            assert stamped.read(memoryview(bytearray(100))) == 5
            delays_ns.append(stamped.stamp_ns - sent_ns)
        assert statistics.median(delays_ns) < 10_000_000
        assert not stamped.reordered()
