"""On a fabric whose switch delays, loses and marks: what `genie testbed up --kind rdma-vm` runs in test_rdma_lab.py.

Three hosts at 200 Mb/s; every port of the one switch delays by 5 ms, loses 1 %, and marks from a queue of 20 kB on.
"""

import re
import subprocess
from pathlib import Path

from conformance import Party

from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_options import VerbsOptions

ECT = 0x02
ADDRESSES = ("10.0.0.1", "10.0.0.5", "10.0.0.9")


def party(**kwargs):
    return Party([VerbsTransport(rank, VerbsOptions(own, bytes(32), **kwargs)) for rank, own in enumerate(ADDRESSES)])


def marked():
    words = ["ip", "netns", "exec", "switch0", "tc", "-s", "qdisc"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.count("netem") == 3
    return sum(int(number) for number in re.findall(r"marked (\d+)", said))


def counter(name):
    """One of Soft-RoCE's own, of both devices."""
    return sum(int(path.read_text()) for path in Path("/sys/class/infiniband").glob(f"rxe*/ports/1/hw_counters/{name}"))


def test_a_message_takes_at_least_the_delay_of_its_path():
    with party() as both:
        receive, _ = both.exchange(0, 1, 1, 100)
        both.settle()
        assert both.done[receive].done_ns - both.done[receive].posted_ns >= 5_000_000


def test_what_is_lost_is_sent_again_by_the_device():
    lost_before = counter("out_of_seq_request")
    with party(verify=True) as both:
        for tag in range(4):
            both.exchange(0, 1, tag, 1 << 20)
        both.settle()
    assert counter("out_of_seq_request") > lost_before


def test_only_packets_that_say_so_are_marked():
    """Two send to one, so that a queue stands at its port."""
    seen = []
    for traffic_class in (0, ECT):
        before = marked()
        with party(ack_timeout_ns=260_000_000, give_up_ns=1_800_000_000, traffic_class=traffic_class) as three:
            for source in (0, 1):
                three.exchange(source, 2, 1, 1 << 20)
            three.settle()
        seen.append(marked() - before)
    assert seen[0] == 0
    assert seen[1] > 0
