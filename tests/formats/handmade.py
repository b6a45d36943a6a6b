"""Small traces made by hand, and their raw form, for the tests of checks and repairs."""

from genie.core.workload import CollectiveKind, NodeKind
from genie.formats.chakra import read_raw
from genie.formats.chakra_schema import AttributeProto, Node
from genie.formats.frames import pack

AR = int(CollectiveKind.ALL_REDUCE)


def node(identity, kind, *, data=(), ctrl=(), duration_us=0, **attributes):
    made = Node(id=identity, name=f"n{identity}", type=kind, data_deps=data, ctrl_deps=ctrl)
    made.duration_micros = duration_us
    for name, value in attributes.items():
        field = {bool: "bool_val", str: "string_val"}.get(type(value), "int64_val")
        made.attr.append(AttributeProto(name=name, **{field: value}))
    return made


def compute(identity, duration_us=1, **more):
    return node(identity, NodeKind.COMP, duration_us=duration_us, **more)


def reduce_all(identity, size=1024, group="", **more):
    named = {"pg_name": group} if group else {}
    return node(identity, NodeKind.COLLECTIVE, **({"comm_type": AR, "comm_size": size} | named | more))


def send(identity, to, size=64, tag=0, **more):
    return node(identity, NodeKind.SEND, comm_dst=to, comm_size=size, comm_tag=tag, **more)


def receive(identity, source, size=64, tag=0, **more):
    return node(identity, NodeKind.RECV, comm_src=source, comm_size=size, comm_tag=tag, **more)


def write(folder, *ranks, prefix="w"):
    """PREFIX.RANK.et of lists of nodes; the prefix."""
    for rank, nodes in enumerate(ranks):
        payloads = [b"\n\x050.0.4", *(made.SerializeToString() for made in nodes)]
        (folder / f"{prefix}.{rank}.et").write_bytes(pack(payloads))
    return folder / prefix


def raws(folder, *ranks):
    """Rank -> raw trace of lists of nodes."""
    prefix = write(folder, *ranks)
    return {rank: read_raw(f"{prefix}.{rank}.et") for rank in range(len(ranks))}
