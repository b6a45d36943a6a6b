"""RDMA devices of one process that do what verbs promise: in place of verbs_library's where there are none.

Memory is checked by key and bounds, queues by their length, wake-ups by what was armed; nothing is lost on the way.
"""

import contextlib
import ctypes
import itertools
import os
import threading
from collections import deque
from types import SimpleNamespace

from genie.errors import RunError
from genie.replay.transports.verbs_device import ACTIVE, GidInfo, GidKind, LinkLayer, PortInfo
from genie.replay.transports.verbs_errors import FLUSHED, RETRY_EXCEEDED, SUCCESS
from genie.replay.transports.verbs_library import Done, Memory

REMOTE_ACCESS, NO_RECEIVE = 10, 13


class Rack:
    """All devices; `slow_s`: how much later than its effect a request is told to be done."""

    def __init__(self, addresses, slow_s=0.0):
        self.ports = {f"fake{at}": PortInfo(f"fake{at}", 1, ACTIVE, LinkLayer.ETHERNET, 4096) for at in range(99)}
        self.gids = {
            f"fake{at}": [GidInfo(f"fake{at}", 1, 0, f"::ffff:{address}", GidKind.ROCE_V2)]
            for at, address in enumerate(addresses)
        }
        self.ports = {name: port for name, port in self.ports.items() if name in self.gids}
        self.slow_s = slow_s
        self.pairs, self.regions = {}, {}
        self.numbers = itertools.count(1)
        self.lock = threading.RLock()

    def device(self, name):
        return FakeDevice(self, name)

    def survey(self):
        return list(self.ports.values()), [gid for gids in self.gids.values() for gid in gids]


class FakeDevice:
    def __init__(self, rack, name):
        self.rack, self.name = rack, name
        self.done = deque()
        self.pairs = []
        self.armed = ""
        self.event_fd = -1

    def ports(self):
        return [self.rack.ports[self.name]]

    def port(self, _):
        return self.rack.ports[self.name]

    def gids(self):
        return self.rack.gids[self.name]

    def prepare(self, completions, *, events):
        self.most = completions
        if events:
            self.event_fd = os.eventfd(0, os.EFD_NONBLOCK)

    def register_new(self, size_bytes, *, remote=True):
        block = bytearray(size_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        return self._register(address, size_bytes, memoryview(block), block, remote=remote)

    def register_given(self, block):
        address = ctypes.cast(ctypes.c_char_p(block), ctypes.c_void_p).value
        return self._register(address, len(block), memoryview(b""), block, remote=False)

    def _register(self, address, size_bytes, view, owner, *, remote):
        key = next(self.rack.numbers)
        self.rack.regions[key] = (address, size_bytes, remote)
        return Memory(SimpleNamespace(lkey=key, rkey=key), address, view, owner)

    def queue_pair(self, plan):
        self.pairs.append(FakePair(self, plan))
        return self.pairs[-1]

    def arm(self, *, every=False):
        with self.rack.lock:
            self.armed = "every" if every else "solicited"

    def take_event(self):
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.event_fd)

    def poll(self, most):
        with self.rack.lock:
            taken = [self.done.popleft() for _ in range(min(most, len(self.done)))]
            for done in taken:
                if not done.received:
                    self.rack.pairs[done.queue_pair].told(done.number)
        return taken

    def tell(self, done, *, solicited):
        """A completion; whoever is armed for it is woken."""
        with self.rack.lock:
            assert len(self.done) < self.most, "the completion queue overran"
            self.done.append(done)
            if self.armed == "every" or (self.armed and (solicited or done.status)):
                self.armed = ""
                os.eventfd_write(self.event_fd, 1)

    def close(self):
        with self.rack.lock:
            for pair in self.pairs:
                pair.open = False
            if self.event_fd >= 0:
                os.close(self.event_fd)
                self.event_fd = -1


class FakePair:
    def __init__(self, device, plan):
        self.device, self.plan = device, plan
        self.number = next(device.rack.numbers)
        device.rack.pairs[self.number] = self
        self.receives, self.posted = deque(), deque()
        self.open, self.failed, self.peer = True, False, None

    def connect(self, _, peer):
        self.peer = self.device.rack.pairs[peer.number]

    def expect(self, number, piece=None):
        assert len(self.receives) < self.plan.receives, "the receive queue overran"
        self.receives.append((number, piece))

    def told(self, number):
        """The process knows that this request is done, and so all before it: their places are free again."""
        while self.posted and self.posted[0] <= number:
            self.posted.popleft()

    def post(self, number, pieces, *, word=-1, target=None, signalled=False, wake=False):
        with self.device.rack.lock:
            if len(self.posted) >= self.plan.sends:
                raise RunError("the device takes no request: Cannot allocate memory.")
            self.posted.append(number)
            status = FLUSHED if self.failed else self._carry(pieces, word, target, wake)
            if status != SUCCESS:
                self.failed = True
            if status != SUCCESS or signalled:
                self._later(Done(self.number, number, status, received=False, length=0, word=-1, vendor=0))

    def _later(self, done):
        def tell():
            with self.device.rack.lock:
                if self.open:
                    self.device.tell(done, solicited=False)

        if self.device.rack.slow_s:
            threading.Timer(self.device.rack.slow_s, tell).start()
        else:
            tell()

    def _carry(self, pieces, word, target, wake):
        """Bring it to the peer; the status of its completion here."""
        peer = self.peer
        if not peer.open:
            return RETRY_EXCEEDED
        data = b"".join(ctypes.string_at(piece.address, piece.length) for piece in pieces)
        if target is not None and not self._may_write(*target, len(data)):
            return REMOTE_ACCESS
        number, piece = 0, None
        if target is None or word >= 0:
            if not peer.receives:
                return NO_RECEIVE
            number, piece = peer.receives.popleft()
        address = target[0] if target is not None else piece.address if piece else 0
        ctypes.memmove(address, data, len(data))
        if target is None or word >= 0:
            done = Done(peer.number, number, SUCCESS, received=True, length=len(data), word=word, vendor=0)
            peer.device.tell(done, solicited=wake)
        return SUCCESS

    def _may_write(self, address, key, size_bytes):
        """Nothing is written by a request without bytes, whose key verbs do not look at."""
        begin, length, remote = self.device.rack.regions.get(key, (0, 0, False))
        return not size_bytes or (remote and begin <= address and address + size_bytes <= begin + length)

    def close(self):
        self.open = False
