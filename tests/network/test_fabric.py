"""The fluid fabric: exact where it can be worked out by hand, bounds and conservation for anything else."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genie.core.netmodel import Estimate
from genie.errors import InputError
from genie.network.fabric import DirectedLink, fabric_model
from genie.network.models import build
from genie.network.queue import EventQueue

GB_PER_S = 8e9  # bit/s of one byte per ns


def star(ranks, gigabytes=1.0, delay_ns=100.0, message_ns=0.0):
    """Every rank with an up and a down link to one switch."""
    links = []
    for rank in range(ranks):
        links.append(DirectedLink(f"up{rank}", f"h{rank}", "s", gigabytes * GB_PER_S, delay_ns, "host"))
        links.append(DirectedLink(f"down{rank}", "s", f"h{rank}", gigabytes * GB_PER_S, delay_ns, "host"))
    routes = {(a, b): (f"up{a}", f"down{b}") for a in range(ranks) for b in range(ranks) if a != b}
    return fabric_model(ranks, links, routes, message_ns=message_ns)


def leaf_spine(core_of, *, core=1.0, spines=2):
    """Two leaves of two hosts; `core_of[pair]` is the spine of a pair that crosses."""
    links = []
    for rank in range(4):
        leaf = f"l{rank // 2}"
        links.append(DirectedLink(f"up{rank}", f"h{rank}", leaf, GB_PER_S, 0.0, "host"))
        links.append(DirectedLink(f"down{rank}", leaf, f"h{rank}", GB_PER_S, 0.0, "host"))
    for leaf in ("l0", "l1"):
        for spine in range(spines):
            links.append(DirectedLink(f"{leaf}>s{spine}", leaf, f"s{spine}", core * GB_PER_S, 0.0, "core"))
            links.append(DirectedLink(f"s{spine}>{leaf}", f"s{spine}", leaf, core * GB_PER_S, 0.0, "core"))
    routes = {}
    for (a, b), spine in core_of.items():
        routes[a, b] = (f"up{a}", f"l{a // 2}>s{spine}", f"s{spine}>l{b // 2}", f"down{b}")
    return fabric_model(4, links, routes)


def deliveries(model, messages):
    queue = EventQueue()
    network, ticks = build(model, queue), [-1] * len(messages)

    def delivered(number):
        assert ticks[number] == -1
        ticks[number] = queue.now_ns

    for number, (when, src, dst, size) in enumerate(messages):
        queue.at(when, network.send, src, dst, size, delivered, number)
    queue.run()
    assert -1 not in ticks
    return ticks


@given(st.integers(1, 1 << 34), st.integers(1, 10**12), st.integers(0, 10**6), st.integers(0, 10**5))
def test_a_flow_alone_takes_its_serialisation_its_delays_and_the_overhead(size, rate_bps, post_ns, fixed_ns):
    links = [DirectedLink("a", "h0", "s", rate_bps, fixed_ns), DirectedLink("b", "s", "h1", 10**13, 17)]
    model = fabric_model(2, links, {(0, 1): ("a", "b")}, message_ns=250.0)
    exact = size * 8e9 / rate_bps
    (tick,) = deliveries(model, [(post_ns, 0, 1, size)])
    assert tick - post_ns - fixed_ns - 17 - 250 == pytest.approx(math.ceil(exact - 1e-6), abs=max(0, exact * 1e-12))


@pytest.mark.parametrize("senders", [1, 2, 5, 7])
def test_incast_gives_each_sender_its_part(senders):
    ticks = deliveries(star(8), [(0, src, 0, 1_000_000) for src in range(1, senders + 1)])
    assert ticks == [senders * 1_000_000 + 200] * senders


def test_an_oversubscribed_core_is_shared():
    """Two crossing flows over one spine link of half the rate: each gets a quarter."""
    model = leaf_spine({(0, 2): 0, (1, 3): 0}, core=0.5)
    assert deliveries(model, [(0, 0, 2, 1_000_000), (0, 1, 3, 1_000_000)]) == [4_000_000] * 2


def test_ecmp_collision_halves_and_disjoint_paths_do_not():
    messages = [(0, 0, 2, 1_000_000), (0, 1, 3, 1_000_000)]
    assert deliveries(leaf_spine({(0, 2): 0, (1, 3): 0}), messages) == [2_000_000] * 2
    assert deliveries(leaf_spine({(0, 2): 0, (1, 3): 1}), messages) == [1_000_000] * 2


def test_shares_change_when_flows_come_and_go():
    """B joins half-way through A, and A's end gives B the link back."""
    ticks = deliveries(star(3, delay_ns=0.0), [(0, 1, 0, 1000), (500, 2, 0, 1000)])
    assert ticks == [1500, 2000]


def test_messages_of_a_pair_queue_and_pay_the_fixed_part_once_each_in_parallel():
    ticks = deliveries(star(2, message_ns=1000.0), [(0, 0, 1, 500), (0, 0, 1, 500), (100, 0, 1, 500)])
    assert ticks == [1700, 2200, 2700]


def test_a_pair_has_one_share_however_many_messages_wait():
    ticks = deliveries(star(3, delay_ns=0.0), [(0, 1, 0, 1000), (0, 1, 0, 1000), (0, 2, 0, 1000)])
    assert ticks == [2000, 3000, 2000]


def test_rounding_to_whole_ns_does_not_add_up():
    """10,000 messages of 1/3 ns more than a whole number: the train takes the exact time, to 1 ns."""
    model = fabric_model(2, [DirectedLink("a", "h0", "h1", 3 * GB_PER_S)], {(0, 1): ("a",)})
    ticks = deliveries(model, [(0, 0, 1, 1000)] * 10_000)
    assert ticks[-1] == pytest.approx(10_000 * 1000 / 3, abs=1)


def test_messages_shorter_than_a_tick_are_all_delivered():
    model = fabric_model(2, [DirectedLink("a", "h0", "h1", 1000 * GB_PER_S)], {(0, 1): ("a",)})
    ticks = deliveries(model, [(0, 0, 1, 1)] * 5000)
    assert ticks == sorted(ticks)
    assert ticks[-1] in (5, 6)


def test_gap_spaces_the_posts_of_one_rank_not_of_others():
    model = replace(star(4, delay_ns=0.0), gap_ns=Estimate(100.5))
    ticks = deliveries(model, [(0, 0, 1, 10), (0, 0, 2, 10), (0, 0, 3, 10), (0, 1, 2, 10)])
    assert ticks == [10, 111, 211, 10]


@st.composite
def traffic(draw):
    ranks = draw(st.integers(2, 6))
    pair = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1)).filter(lambda p: p[0] != p[1])
    message = st.tuples(st.integers(0, 5000), pair, st.integers(1, 10_000))
    return ranks, [(when, *ends, size) for when, ends, size in draw(st.lists(message, min_size=1, max_size=40))]


@settings(max_examples=60)
@given(traffic())
def test_any_traffic_keeps_links_within_capacity_and_wastes_none_of_a_busy_one(case):
    """Bytes over a link between any post and any later delivery fit into that time (+1 ns rounding a message)."""
    ranks, messages = case
    ticks = deliveries(star(ranks, delay_ns=0.0), messages)
    for port in range(ranks):
        for end in (1, 2):
            mine = [(m[0], tick, m[3]) for m, tick in zip(messages, ticks, strict=True) if m[end] == port]
            for start in {post for post, _, _ in mine}:
                for stop in {tick for _, tick, _ in mine}:
                    inside = sum(size for post, tick, size in mine if post >= start and tick <= stop)
                    assert inside <= max(0, stop - start) + len(mine)
    assert max(ticks) <= max(m[0] for m in messages) + sum(m[3] for m in messages) + len(messages)


@settings(max_examples=60)
@given(traffic())
def test_a_port_that_always_has_work_ends_on_time(case):
    """All to rank 0 at once: the last delivery is the sum of the bytes, whatever the sizes."""
    _, messages = case
    incast = [(0, src, 0, size) for _, src, _, size in messages if src != 0]
    if incast:
        total = sum(size for *_, size in incast)
        assert max(deliveries(star(6, delay_ns=0.0), incast)) == pytest.approx(total, abs=len(incast) + 1)


@given(traffic())
def test_pairs_are_first_in_first_out(case):
    ranks, messages = case
    ordered = sorted(messages, key=lambda m: m[0])
    last: dict[tuple[int, int], int] = {}
    for (_, src, dst, _), tick in zip(ordered, deliveries(star(ranks), ordered), strict=True):
        assert tick >= last.get((src, dst), 0)
        last[src, dst] = tick


@given(traffic())
def test_the_same_posts_give_the_same_deliveries(case):
    ranks, messages = case
    assert deliveries(star(ranks, 0.7), messages) == deliveries(star(ranks, 0.7), messages)


@pytest.mark.parametrize(("src", "dst", "size"), [(1, 1, 8), (0, 9, 8), (0, 1, 0), (0, 1, -1)])
def test_impossible_messages_are_refused(src, dst, size):
    network = build(star(3), EventQueue())
    network.send(0, 1, 5, lambda: None)
    with pytest.raises(InputError, match=f"rank {src}.*rank {dst}"):
        network.send(src, dst, size, lambda: None)


def test_a_fabric_of_links_that_do_not_hang_together_is_refused():
    links = [DirectedLink("a", "h0", "s", 1e9), DirectedLink("b", "s", "h1", 1e9)]
    with pytest.raises(InputError, match="does not start where link b ends"):
        fabric_model(2, links, {(0, 1): ("b", "a")})
    with pytest.raises(InputError, match="no link is named 'c'"):
        fabric_model(2, links, {(0, 1): ("a", "c")})
    with pytest.raises(InputError, match="a: two links have one name"):
        fabric_model(2, [*links, links[0]], {})
