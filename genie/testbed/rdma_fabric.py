"""An emulated fabric whose hosts have RDMA devices: Soft-RoCE on the host's end of each cable, in the rdma-lab's guest.

Soft-RoCE works in the initial network namespace only, so all hosts live there, and rules push what leaves one host's
address or interface onto that host's cable, even if it is for another host of the same machine. The switches, with
their routes, shapers and counters, are namespaces as in any emulated fabric; netem and RED can be put on their ports.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from genie.core.testbed import Node, Role, Testbed
from genie.errors import InputError, NotReadyError
from genie.testbed.addressing import Port
from genie.testbed.emulated import EmulatedFabric
from genie.testbed.namespaces import current, inside
from genie.testbed.netlink import Conversation, Request
from genie.testbed.rdma_vm import inside_guest
from genie.testbed.routes import FlowKey
from genie.units import ns_to_us

FIRST_TABLE: Final = 1000
NAMED: Final = Path("/run/netns")
_RULE_SELF, _RULE_OUT, _RULE_FROM, _RULE_LOCAL = 9, 10, 11, 100
_BULK_QUEUE: Final = "1:1"
_TIMEOUT_S: Final = 10
ROCE_HEADER_BYTES: Final = 96
"""Most that RoCE v2 adds to a path MTU: IPv6 or IPv4, UDP, BTH and what follows it, ICRC."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """What every port of every switch does to packets that are no acknowledgements. Real time.

    Attributes:
        delay_ns: netem's delay.
        loss: netem's share of packets lost at random, 0 to 1.
        mark_bytes: RED marks packets that can be marked (ECN) from this average queue on; 0: no RED.
    """

    delay_ns: int = 0
    loss: float = 0.0
    mark_bytes: int = 0

    def __post_init__(self) -> None:
        if self.delay_ns < 0 or not 0 <= self.loss < 1 or self.mark_bytes < 0:
            raise InputError("a delay and a mark must not be negative, a loss must lie in 0 to 1.")


class RdmaFabric(EmulatedFabric):
    """See EmulatedFabric; `device` names a host's RDMA device.

    Raises:
        NotReadyError: outside a guest: routing rules of the machine itself are not ours to change.
    """

    def __init__(self, testbed: Testbed, impairment: Impairment | None = None) -> None:
        if not inside_guest():
            raise NotReadyError(
                "a fabric with RDMA devices is made in the rdma-lab only.",
                where=testbed.name,
                fix="genie testbed up --kind rdma-vm FILE -- COMMAND",
            )
        if testbed.crowded or any(len(testbed.neighbours()[h]) > 1 for h in testbed.hosts):
            raise InputError("several NICs or ranks a host are not supported in the rdma-lab.", where=testbed.name)
        super().__init__(testbed)
        self._impairment = impairment or Impairment()
        self._rules: list[list[str]] = []
        self._named: list[str] = []
        for place, host in enumerate(testbed.hosts):
            self._ports[host] = [replace(port, name=f"nic{place}") for port in self._ports[host]]
        self._towards = {(port.node, port.peer): port for row in self._ports.values() for port in row}

    def device(self, host: str) -> str:
        """Name of a host's RDMA device."""
        return f"rxe{self.testbed.hosts.index(host)}"

    def _build(self) -> None:
        _prepare()
        super()._build()
        for host in self.testbed.hosts:
            self._steer(host, self._ports[host][0])
            _run("rdma", "link", "add", self.device(host), "type", "rxe", "netdev", self._ports[host][0].name)
        self._impair()
        self._name_switches()

    def usage(self) -> list[str]:
        """Which host has which device and address, and how to enter a switch."""
        hosts = [f"{host}: {self.device(host)}, address {self.address(host)}" for host in self.testbed.hosts]
        switches = [node.name for node in self.testbed.nodes if node.name not in self._hosts]
        return [*hosts, *(f"{name}: ip netns exec {name} COMMAND" for name in switches)]

    def _name_switches(self) -> None:
        """Let `ip netns` find them; the guest's /run vanishes with the guest."""
        NAMED.mkdir(parents=True, exist_ok=True)
        for node, namespace in self._namespaces.items():
            if node not in self._hosts:
                (NAMED / node).touch()
                _run("mount", "--bind", f"/proc/{os.getpid()}/fd/{namespace}", str(NAMED / node))
                self._named.append(node)

    def _create(self, node: Node) -> None:
        if node.role is Role.SWITCH:
            super()._create(node)
            return
        self._namespaces[node.name] = current()
        self._conversations[node.name] = Conversation()

    def _routes(self, down: frozenset[str] = frozenset()) -> dict[str, list[Request]]:
        """Those of the switches; a host's is in a table of its own (see _steer)."""
        routes = super()._routes(down)
        return routes | {host: [] for host in self.testbed.hosts}

    def _steer(self, host: str, port: Port) -> None:
        """Whatever this host sends goes out through its cable, but for what it sends to itself."""
        table = str(FIRST_TABLE + self.testbed.hosts.index(host))
        _run("ip", "route", "add", "default", "via", port.peer_address, "dev", port.name, "table", table)
        self._rule(_RULE_SELF, "from", port.address, "to", port.address, "lookup", "local")
        self._rule(_RULE_OUT, "oif", port.name, "lookup", table)
        self._rule(_RULE_FROM, "from", port.address, "iif", "lo", "lookup", table)

    def _rule(self, preference: int, *words: str) -> None:
        rule = ["pref", str(preference), *words]
        _run("ip", "rule", "add", *rule)
        self._rules.append(rule)

    def _egress(self, at: str, came_from: int, flow: FlowKey) -> Port:
        """A host has one way out; what the shared namespace would answer is about all hosts at once."""
        return self._ports[at][0] if at in self._hosts else super()._egress(at, came_from, flow)

    def _impair(self) -> None:
        for node, namespace in self._namespaces.items():
            if node not in self._hosts:
                with inside(namespace):
                    for port in self._ports[node]:
                        for words in queue_commands(self._impairment, port, self.testbed.wire_bps(port.cable)):
                            _run("tc", "qdisc", "replace", "dev", port.name, *words)

    def close(self) -> None:
        """See EmulatedFabric; the devices go with their cables."""
        for rule in self._rules:
            with contextlib.suppress(NotReadyError):
                _run("ip", "rule", "del", *rule)
        for node in self._named:
            with contextlib.suppress(NotReadyError, OSError):
                _run("umount", str(NAMED / node))
                (NAMED / node).unlink()
        self._rules, self._named = [], []
        super().close()


def queue_commands(impairment: Impairment, port: Port, wire_bps: int) -> Iterator[list[str]]:
    """What `tc qdisc replace dev PORT` is given so that a port's queue delays, loses and marks."""
    parent, buffer_bytes = _BULK_QUEUE, port.cable.buffer_bytes
    if impairment.delay_ns or impairment.loss:
        delay = ["delay", f"{ns_to_us(impairment.delay_ns):.0f}us"] if impairment.delay_ns else []
        loss = ["loss", f"{100 * impairment.loss:.4f}%"] if impairment.loss else []
        yield ["parent", parent, "handle", "40:", "netem", "limit", str(max(1000, buffer_bytes // 256)), *delay, *loss]
        parent = "40:1"
    if impairment.mark_bytes:
        least = impairment.mark_bytes
        most = min(3 * least, buffer_bytes)
        burst = max(1, (2 * least + most) // (3 * 1000) + 1)
        yield [
            *("parent", parent, "handle", "50:", "red", "limit", str(buffer_bytes), "min", str(least)),
            *("max", str(most), "avpkt", "1000", "burst", str(burst), "bandwidth", f"{wire_bps}bit"),
            *("probability", "1", "ecn"),
        ]


def _prepare() -> None:
    """Let packets between two addresses of one machine travel on cables: answer nothing that another host should."""
    for key, value in {
        "ipv6/conf/all/disable_ipv6": "1",
        "ipv6/conf/default/disable_ipv6": "1",
        "ipv4/conf/all/rp_filter": "0",
        "ipv4/conf/default/rp_filter": "0",
        "ipv4/conf/all/accept_local": "1",
        "ipv4/conf/default/accept_local": "1",
        "ipv4/conf/all/arp_ignore": "1",
        "ipv4/conf/all/arp_announce": "2",
    }.items():
        with contextlib.suppress(FileNotFoundError):
            (Path("/proc/sys/net") / key).write_text(value, encoding="ascii")
    rules = _run("ip", "rule", "show")
    if f"{_RULE_LOCAL}:" not in rules:
        _run("ip", "rule", "add", "pref", str(_RULE_LOCAL), "lookup", "local")
    if rules.startswith("0:"):
        _run("ip", "rule", "del", "pref", "0")


def _run(*words: str) -> str:
    """One of iproute2's commands; what it printed.

    Raises:
        NotReadyError: it is not there, or refuses.
    """
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=environment
        )
    except OSError as error:
        raise NotReadyError(f"{words[0]} does not start: {error.strerror}.", fix="sudo apt install iproute2") from error
    if done.returncode:
        raise NotReadyError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}.", where="rdma-lab")
    return done.stdout
