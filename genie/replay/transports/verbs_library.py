"""The only module that knows pyverbs: devices, memory regions, completion queues and RC queue pairs for Genie.

pyverbs comes with the distribution (python3-pyverbs), for the system's Python. A virtual environment of the same Python
version finds it too, since the system's folder is appended to the path: last, so that it shadows nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import mmap
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from genie.errors import NotReadyError, RunError
from genie.replay.transports.verbs_device import GidInfo, GidKind, LinkLayer, PortInfo, mtu_code, mtu_of
from genie.replay.transports.verbs_units import Retry

SYSTEM_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
MODULES: Final = ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr")
MAX_GIDS: Final = 1024
_STATES: Final = {0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active, to be disabled"}
_LAYERS: Final = {1: LinkLayer.INFINIBAND, 2: LinkLayer.ETHERNET}
_CHANNEL: Final = "anon_inode:[infinibandevent]"
_CHANNEL_LOCK: Final = threading.Lock()
"""Which descriptor is new can only be told if nobody else opens one meanwhile."""


def find_pyverbs() -> str:
    """Why pyverbs cannot be used; "" if it can."""
    try:
        _library()
    except NotReadyError as error:
        return error.what
    return ""


def _library() -> SimpleNamespace:
    """Its modules by name.

    Raises:
        NotReadyError: it is not installed, or for another Python.
    """
    if importlib.util.find_spec("pyverbs") is None and str(SYSTEM_PACKAGES) not in sys.path:
        sys.path.append(str(SYSTEM_PACKAGES))
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"pyverbs.{name}") for name in MODULES})
    except ImportError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        other = (SYSTEM_PACKAGES / "pyverbs").is_dir()
        what = f"is not for Python {version}" if other else "is not installed"
        raise NotReadyError(
            f"pyverbs {what} ({error}).",
            fix="make the virtual environment with the system's python3"
            if other
            else "sudo apt install python3-pyverbs",
        ) from error


@contextlib.contextmanager
def _told(what: str, fix: str = "genie doctor tells what this machine can do.") -> Iterator[None]:
    """Turn pyverbs' errors into sentences."""
    from pyverbs.pyverbs_error import PyverbsError  # noqa: PLC0415 - found by now

    try:
        yield
    except PyverbsError as error:
        code = getattr(error, "error_code", 0) or 0
        reason = os.strerror(abs(code)) if code else str(error).splitlines()[0]
        raise NotReadyError(f"{what}: {reason}.", fix=fix) from error


class Piece(NamedTuple):
    """Where some bytes are in registered memory: address, length, local key."""

    address: int
    length: int
    key: int


class Done(NamedTuple):
    """A work completion: `word` is the peer's immediate, -1 if there was none."""

    queue_pair: int
    number: int
    status: int
    received: bool
    length: int
    word: int
    vendor: int


class PeerEnd(NamedTuple):
    """What a queue pair is connected to."""

    number: int
    packet: int
    gid: str
    lid: int


class QueuePairPlan(NamedTuple):
    """How a queue pair is made and talks.

    Attributes:
        port, gid_index: ours.
        layer: of the port.
        mtu_bytes: path MTU.
        retry: see Retry; `rnr` is the code of what a receiver without a buffer asks for.
        traffic_class, flow_label: of every packet.
        sends, receives: work requests in flight.
        inline_bytes: messages up to this size travel in the work request itself.
    """

    port: int
    gid_index: int
    layer: LinkLayer
    mtu_bytes: int
    retry: Retry
    rnr: int
    traffic_class: int
    flow_label: int
    sends: int
    receives: int
    inline_bytes: int


def device_names() -> list[str]:
    """RDMA devices of this host.

    Raises:
        NotReadyError: pyverbs cannot be used.
    """
    library = _library()
    with _told("the RDMA devices cannot be listed"):
        return sorted(device.name.decode() for device in library.device.get_device_list())


def survey() -> tuple[list[PortInfo], list[GidInfo]]:
    """All ports and GIDs of this host.

    Raises:
        NotReadyError: pyverbs cannot be used, or a device does not open.
    """
    ports, gids = [], []
    for name in device_names():
        with contextlib.closing(Device(name)) as device:
            ports += device.ports()
            gids += device.gids()
    return ports, gids


class Memory:
    """Bytes that a device may read or write, registered once.

    Attributes:
        view: the bytes; empty for memory that was given.
        address, key: for work requests here.
        remote_key: for a peer that writes here.
    """

    def __init__(self, region: Any, address: int, view: memoryview, owner: object) -> None:
        self._region, self._owner = region, owner
        self.address, self.view = address, view
        self.key, self.remote_key = int(region.lkey), int(region.rkey)

    def piece(self, at: int, length: int) -> Piece:
        """A part of it."""
        return Piece(self.address + at, length, self.key)

    def close(self) -> None:
        """Deregister."""
        self._region.close()


class Device:
    """An open device with one protection domain and (once asked for) one completion queue.

    Raises:
        NotReadyError: there is none of that name, or it cannot be opened.
    """

    def __init__(self, name: str) -> None:
        self._library = _library()
        self.name = name
        with _told(f"RDMA device {name} does not open", "are you allowed to use /dev/infiniband?"):
            self._context = self._library.device.Context(name=name)
        self._domain: Any = None
        self._queue: Any = None
        self._channel: Any = None
        self._regions: list[Memory] = []
        self._pairs: list[QueuePair] = []
        self.event_fd = -1

    def ports(self) -> list[PortInfo]:
        """Its ports as they are now."""
        with _told(f"RDMA device {self.name} cannot be asked"):
            count = self._context.query_device().phys_port_cnt
            return [self.port(number) for number in range(1, count + 1)]

    def port(self, number: int) -> PortInfo:
        """One port as it is now."""
        with _told(f"port {number} of {self.name} cannot be asked"):
            told = self._context.query_port(number)
        layer = _LAYERS.get(told.link_layer, LinkLayer.INFINIBAND)
        state = _STATES.get(told.state, f"in state {told.state}")
        return PortInfo(self.name, number, state, layer, mtu_of(told.active_mtu), int(told.lid))

    def gids(self) -> list[GidInfo]:
        """Its GID tables as they are now."""
        with _told(f"the GID table of {self.name} cannot be read"):
            entries = self._context.query_gid_table(MAX_GIDS)
        return [
            GidInfo(self.name, int(entry.port_num), int(entry.gid_index), entry.gid_str(), self._kind(entry.gid_type))
            for entry in entries
        ]

    def _kind(self, code: int) -> GidKind:
        enums = self._library.enums
        kinds = {enums.IBV_GID_TYPE_ROCE_V1: GidKind.ROCE_V1, enums.IBV_GID_TYPE_ROCE_V2: GidKind.ROCE_V2}
        return kinds.get(code, GidKind.INFINIBAND)

    def prepare(self, completions: int, *, events: bool) -> None:
        """Make the protection domain and a completion queue of so many entries."""
        library = self._library
        with _told(f"RDMA device {self.name} gives no completion queue of {completions} entries", "use fewer ranks."):
            self._domain = library.pd.PD(self._context)
            if events:
                with _CHANNEL_LOCK:
                    before = _channels()
                    self._channel = library.cq.CompChannel(self._context)
                    self.event_fd = next(iter(_channels() - before))
                os.set_blocking(self.event_fd, False)
            self._queue = library.cq.CQ(self._context, completions, None, self._channel)

    def register_new(self, size_bytes: int, *, remote: bool = True) -> Memory:
        """Zeroed memory of our own that peers may write to (`remote`), or only the device here.

        Raises:
            NotReadyError: not so much memory may be locked.
        """
        block = mmap.mmap(-1, max(size_bytes, mmap.PAGESIZE))
        view = memoryview(block)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        enums = self._library.enums
        access = enums.IBV_ACCESS_LOCAL_WRITE | (enums.IBV_ACCESS_REMOTE_WRITE if remote else 0)
        return self._register(address, len(view), access, view, block)

    def register_given(self, block: bytes) -> Memory:
        """Bytes that are only read; they are kept from being freed."""
        address = ctypes.cast(ctypes.c_char_p(block), ctypes.c_void_p).value or 0
        return self._register(address, len(block), 0, memoryview(b""), block)

    def _register(self, address: int, size_bytes: int, access: int, view: memoryview, owner: object) -> Memory:
        with _told(f"{size_bytes >> 10} KiB cannot be registered with {self.name}", "ulimit -l unlimited"):
            region = self._library.mr.MR(self._domain, size_bytes, access, address=address)
        self._regions.append(Memory(region, address, view, owner))
        return self._regions[-1]

    def queue_pair(self, plan: QueuePairPlan) -> QueuePair:
        """A new RC queue pair."""
        self._pairs.append(QueuePair(self._library, self._domain, self._queue, plan))
        return self._pairs[-1]

    def arm(self, *, every: bool = False) -> None:
        """Have the next completion that a peer wants us to see make `event_fd` readable; with `every`, any."""
        self._queue.req_notify(not every)

    def take_event(self) -> None:
        """`event_fd` is readable: take what made it so (if there is nothing, the next arming makes it good)."""
        from pyverbs.pyverbs_error import PyverbsError  # noqa: PLC0415 - found by now

        with contextlib.suppress(PyverbsError):
            self._channel.get_cq_event(self._queue)

    def poll(self, most: int) -> list[Done]:
        """Work completions that are there, at most so many."""
        _, completions = self._queue.poll(most)
        return [_done(completion) for completion in completions]

    def close(self) -> None:
        """Release everything, in the order that verbs want; may be called twice."""
        for pair in self._pairs:
            pair.close()
        for part in (self._queue, self._channel, *self._regions, self._domain, self._context):
            if part is not None:
                with contextlib.suppress(Exception):  # a device that went away releases nothing in order
                    part.close()
        self._pairs, self._regions = [], []
        self._queue = self._channel = self._domain = None


_WITH_WORD: Final = 1 << 1
_RECEIVED: Final = 1 << 7
"""enum ibv_wc_flags IBV_WC_WITH_IMM; enum ibv_wc_opcode IBV_WC_RECV."""


def _done(completion: Any) -> Done:
    good = completion.status == 0
    word = socket.ntohl(completion.imm_data) if good and completion.wc_flags & _WITH_WORD else -1
    return Done(
        int(completion.qp_num),
        int(completion.wr_id),
        int(completion.status),
        bool(good and completion.opcode & _RECEIVED),
        int(completion.byte_len) if good else 0,
        word,
        int(completion.vendor_err),
    )


def _channels() -> set[int]:
    """Descriptors of completion channels: pyverbs does not tell which one it opened."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()) == _CHANNEL:
                found.add(int(entry.name))
    return found


class QueuePair:
    """A reliable connected queue pair. Requests are posted signalled or not, with an immediate word or without."""

    def __init__(self, library: SimpleNamespace, domain: Any, queue: Any, plan: QueuePairPlan) -> None:
        self._library, self._plan = library, plan
        enums = library.enums
        cap = library.qp.QPCap(
            max_send_wr=plan.sends,
            max_recv_wr=plan.receives,
            max_send_sge=2,
            max_recv_sge=1,
            max_inline_data=plan.inline_bytes,
        )
        made = library.qp.QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=queue, rcq=queue, sq_sig_all=0, cap=cap)
        with _told("the device gives no queue pair", "use fewer ranks, queue pairs or slots."):
            self._pair = library.qp.QP(domain, made, self._attributes())
        self.number = int(self._pair.qp_num)
        self._nothing = library.wr.SGE(0, 0, 0)
        self._receive = library.wr.RecvWR(num_sge=1, sg=[self._nothing])
        self._receive.num_sge = 0  # pyverbs makes none without a piece, though verbs may

    def _attributes(self) -> Any:
        """Those of the initial state; without remote write a peer's first write would be refused."""
        enums = self._library.enums
        attributes = self._library.qp.QPAttr(port_num=self._plan.port)
        attributes.qp_access_flags = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        return attributes

    def connect(self, packet: int, peer: PeerEnd) -> None:
        """Join it to the peer's; our first packet has number `packet`.

        Raises:
            NotReadyError: the device refuses: its GID is gone, or the peer's cannot be reached.
        """
        plan, attributes = self._plan, self._attributes()
        attributes.path_mtu = mtu_code(plan.mtu_bytes)
        attributes.dest_qp_num, attributes.rq_psn, attributes.sq_psn = peer.number, peer.packet, packet
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer, attributes.rnr_retry = plan.rnr, plan.retry.again
        attributes.timeout, attributes.retry_cnt = plan.retry.timeout, plan.retry.again
        attributes.ah_attr = self._way(peer)
        with _told(
            f"the queue pair cannot be connected to {peer.gid}",
            "is there a route to it, and is our GID still the same?",
        ):
            self._pair.to_rts(attributes)

    def _way(self, peer: PeerEnd) -> Any:
        """InfiniBand inside a subnet needs only the LID; all else goes by GID."""
        plan, address = self._plan, self._library.addr
        if plan.layer is LinkLayer.INFINIBAND:
            return address.AHAttr(port_num=plan.port, is_global=0, dlid=peer.lid)
        route = address.GlobalRoute(
            dgid=address.GID(peer.gid),
            sgid_index=plan.gid_index,
            hop_limit=64,
            traffic_class=plan.traffic_class,
            flow_label=plan.flow_label,
        )
        return address.AHAttr(port_num=plan.port, is_global=1, gr=route, dlid=0)

    def post(
        self,
        number: int,
        pieces: Sequence[Piece],
        *,
        word: int = -1,
        target: tuple[int, int] | None = None,
        signalled: bool = False,
        wake: bool = False,
    ) -> None:
        """Give the device a request: a write to `target` (address, key) of the peer's memory, or a send without one.

        With `wake` a peer that is armed is woken by it.

        Raises:
            RunError: the device takes no more, or the queue pair has failed.
        """
        library, enums = self._library, self._library.enums
        flags = enums.IBV_SEND_SIGNALED if signalled else 0
        flags |= enums.IBV_SEND_SOLICITED if wake else 0
        if pieces and sum(piece.length for piece in pieces) <= self._plan.inline_bytes:
            flags |= enums.IBV_SEND_INLINE
        if target is None:
            code = enums.IBV_WR_SEND if word < 0 else enums.IBV_WR_SEND_WITH_IMM
        else:
            code = enums.IBV_WR_RDMA_WRITE if word < 0 else enums.IBV_WR_RDMA_WRITE_WITH_IMM
        request = library.wr.SendWR(
            wr_id=number,
            opcode=code,
            num_sge=max(1, len(pieces)),
            sg=[library.wr.SGE(*piece) for piece in pieces] or [self._nothing],
            send_flags=flags,
            imm_data=socket.htonl(max(word, 0)),
        )
        request.num_sge = len(pieces)
        if target is not None:
            address, key = target
            request.set_wr_rdma(key, address)
        self._post(self._pair.post_send, request)

    def expect(self, number: int, piece: Piece | None = None) -> None:
        """Give the device a receive: into a piece of memory, or only for a word."""
        library = self._library
        request = self._receive
        if piece is not None:
            request = library.wr.RecvWR(wr_id=number, num_sge=1, sg=[library.wr.SGE(*piece)])
        self._post(self._pair.post_recv, request)

    @staticmethod
    def _post(call: Any, request: Any) -> None:
        from pyverbs.pyverbs_error import PyverbsError  # noqa: PLC0415 - found by now

        try:
            call(request)
        except PyverbsError as error:
            code = abs(getattr(error, "error_code", 0) or 0)
            raise RunError(f"the device takes no request: {os.strerror(code) if code else error}.") from error

    def close(self) -> None:
        """Destroy it."""
        with contextlib.suppress(Exception):  # see Device.close
            self._pair.close()
