"""Reading a trace of a million nodes: whole process, strict reader, dependencies resolved."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from report import Row, at_most, write

from genie.formats.chakra_schema import AttributeProto, GlobalMetadata, Node
from genie.formats.frames import pack

NODES = 1_000_000
READ = "import sys; from genie.formats.chakra import read_trace; print(len(read_trace(sys.argv[1], 0).nodes))"


def payloads(*, varied: bool) -> Iterator[bytes]:
    """Compute and an all-reduce in turn, each depending on the two before it; `varied`: no two sizes are equal."""
    yield GlobalMetadata(version="0.0.4").SerializeToString()
    for at in range(NODES):
        node = Node(id=at, name=f"node {at}", type=4 + 3 * (at % 2), data_deps=range(max(0, at - 2), at))
        node.duration_micros = 10 * (1 - at % 2)
        node.attr.append(AttributeProto(name="is_cpu_op", bool_val=False))
        own = at if varied else 0
        if at % 2:
            node.attr.append(AttributeProto(name="comm_type", int64_val=0))
            node.attr.append(AttributeProto(name="comm_size", int64_val=(1 << 20) + own))
        elif varied:
            node.attr.append(AttributeProto(name="num_ops", int64_val=12_345 + own))
            node.attr.append(AttributeProto(name="tensor_size", uint64_val=4_096 + own))
            node.attr.append(AttributeProto(name="op_type", string_val="aten::mm"))
        yield node.SerializeToString()


def measure(path: Path) -> tuple[float, int]:
    """Seconds of the whole process, and nodes read."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stdout)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.0.et"
        for varied, name in ((False, "equal sizes"), (True, "every size its own")):
            path.write_bytes(pack(payloads(varied=varied)))
            seconds, count = measure(path)
            rows.append(at_most(f"read {NODES:,} nodes, {name}, whole process", seconds, 10, "s"))
            rows.append(Row(f"nodes read, {name}", count, "nodes", f"= {NODES}", count == NODES))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    write("trace", [*rows, Row("peak memory", peak, "MiB")])


if __name__ == "__main__":
    main()
