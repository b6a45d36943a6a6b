"""What every transport must do: a test class to inherit from, and the party of ranks that its tests drive.

A transport's own test module says how its ends are made::

    class TestMine(Conformance):
        def make(self, ranks):
            return [MyTransport(rank, ...) for rank in range(ranks)]
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
import tracemalloc
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from genie.errors import RunError
from genie.replay.transports.base import Kind

PATIENCE_S = 30
SOON_NS = 300_000_000
MIB = 1 << 20


def now_ns():
    return time.monotonic_ns()


def in_ns(seconds):
    return now_ns() + int(seconds * 1e9)


def connect_all(ends, endpoints, seconds=10.0):
    """Connect ends that block while they do, a thread each; what each raised, None if nothing."""
    raised = {}

    def connect(rank, end):
        peers = {peer: endpoint for peer, endpoint in endpoints.items() if peer != rank}
        try:
            end.connect(peers, in_ns(seconds))
        except RunError as error:
            raised[rank] = error

    threads = [threading.Thread(target=connect, args=pair) for pair in ends.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "connect() overran its deadline"
    return raised


class Party:
    """Connected ranks, driven by one thread. Every completion is checked as it comes; none may come twice."""

    def __init__(self, ends):
        self.ends = dict(enumerate(ends))
        self._handles = itertools.count()
        self.posted = {}
        self.done = {}
        self.order = defaultdict(list)

    def __enter__(self):
        try:
            endpoints = {rank: end.open() for rank, end in self.ends.items()}
            raised = connect_all(self.ends, endpoints)
            assert not raised, raised
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for end in self.ends.values():
            end.close()

    def send(self, source, destination, tag=0, size_bytes=1):
        return self._post(self.ends[source].post_send, Kind.SEND, source, destination, tag, size_bytes)

    def recv(self, destination, source, tag=0, size_bytes=1):
        return self._post(self.ends[destination].post_recv, Kind.RECV, destination, source, tag, size_bytes)

    def _post(self, post, kind, rank, peer, tag, size_bytes):
        handle = next(self._handles)
        self.posted[handle] = (kind, rank, peer, tag, size_bytes)
        post(handle, peer, tag, size_bytes)
        return handle

    def exchange(self, source, destination, tag=0, size_bytes=1):
        return self.recv(destination, source, tag, size_bytes), self.send(source, destination, tag, size_bytes)

    def poll(self, rank, timeout_ns=0):
        completions = self.ends[rank].poll(timeout_ns)
        for completion in completions:
            self._check(rank, completion)
        return completions

    def _check(self, rank, completion):
        assert completion.handle in self.posted, "completion of what was never posted"
        assert completion.handle not in self.done, "completed twice"
        kind, owner, peer, tag, size_bytes = self.posted[completion.handle]
        assert (completion.kind, rank, completion.peer) == (kind, owner, peer)
        assert completion.posted_ns <= now_ns()
        assert 0 <= completion.first_byte_ns <= completion.done_ns <= now_ns()
        if kind is Kind.SEND:
            assert completion.posted_ns <= completion.first_byte_ns
        self.done[completion.handle] = completion
        self.order[kind, rank, peer, tag, size_bytes].append(completion.handle)

    def settle(self, *, ranks=None, handles=None):
        """Poll until all that was posted (or the given part of it) is done."""
        wanted = set(self.posted if handles is None else handles)
        until = in_ns(PATIENCE_S)
        while wanted - self.done.keys():
            assert now_ns() < until, f"{len(wanted - self.done.keys())} posts never completed"
            for rank in self.ends if ranks is None else ranks:
                self.poll(rank)

    def poll_for(self, seconds, *ranks):
        until = in_ns(seconds)
        while now_ns() < until:
            for rank in ranks:
                self.poll(rank, 1_000_000)

    def dies(self, rank):
        self.ends[rank].close()

    def truth(self, rank):
        """What `moved` of a rank must say."""
        moved = {"sent": {}, "received": {}}
        for handle in self.done:
            kind, owner, peer, _, size_bytes = self.posted[handle]
            if owner == rank:
                total = moved["sent" if kind is Kind.SEND else "received"].setdefault(peer, [0, 0])
                total[0] += 1
                total[1] += size_bytes
        return moved


class Conformance:
    """Inherit, and give `make`."""

    flows = 1

    def make(self, ranks):
        raise NotImplementedError

    def party(self, ranks=2):
        return Party(self.make(ranks))

    # ---- what arrives

    @pytest.mark.parametrize("receive_first", [True, False])
    @pytest.mark.parametrize("size_bytes", [0, 1, 31, 2_015, 2_016, 2_017, 65_536, MIB + 1])
    def test_a_receive_may_be_posted_before_or_after_its_message_arrives(self, size_bytes, receive_first):
        with self.party() as party:
            if receive_first:
                receive, send = party.exchange(0, 1, 7, size_bytes)
            else:
                send = party.send(0, 1, 7, size_bytes)
                party.settle(handles=[send])
                receive = party.recv(1, 0, 7, size_bytes)
            party.settle()
            arrived, acknowledged = party.done[receive], party.done[send]
            assert acknowledged.posted_ns <= arrived.done_ns
            assert (arrived.posted_ns <= arrived.done_ns) == receive_first
            assert [party.ends[rank].moved() for rank in (0, 1)] == [party.truth(rank) for rank in (0, 1)]

    def test_a_large_message_arrives(self):
        with self.party() as party:
            party.exchange(0, 1, 1, 64 * MIB)
            party.settle()
            assert party.ends[1].moved()["received"] == {0: [1, 64 * MIB]}
            assert all(party.ends[rank].progress_bytes() >= 64 * MIB for rank in (0, 1))

    def test_messages_of_one_key_arrive_in_order_and_once(self):
        keys = [(tag, size_bytes) for tag in (3, -4, 1 << 40) for size_bytes in (0, 5, 40_000)]
        posts = random.Random(1).sample(keys * 30, 30 * len(keys))
        with self.party() as party:
            for tag, size_bytes in posts:
                party.exchange(0, 1, tag, size_bytes)
            party.settle()
            party.poll_for(0.01, 0, 1)
            for (kind, *_), handles in party.order.items():
                if kind is Kind.RECV or self.flows == 1:
                    assert handles == sorted(handles)
            assert len(party.done) == 2 * len(posts)
            assert party.ends[0].moved() == party.truth(0)

    def test_receives_match_by_tag_and_size_whatever_the_order(self):
        keys = [(1, 10), (2, 10), (1, 20), (1, 0)]
        with self.party() as party:
            sends = [party.send(0, 1, *key) for key in keys]
            party.settle(handles=sends)
            receives = [party.recv(1, 0, *key) for key in reversed(keys)]
            party.settle(handles=receives)

    def test_a_message_waits_for_a_receive_of_its_own_size(self):
        with self.party() as party:
            wrong = party.recv(1, 0, 1, 11)
            send = party.send(0, 1, 1, 10)
            party.settle(handles=[send])
            party.poll_for(0.01, 1)
            assert wrong not in party.done
            party.send(0, 1, 1, 11)
            party.recv(1, 0, 1, 10)
            party.settle()

    def test_eight_ranks_all_to_all(self):
        with self.party(8) as party:
            for (source, destination), size_bytes in itertools.product(
                itertools.permutations(range(8), 2), (0, 1_000, 200_000)
            ):
                party.exchange(source, destination, source, size_bytes)
            party.settle()
            for rank in range(8):
                assert party.ends[rank].moved() == party.truth(rank)
                assert len(party.ends[rank].moved()["received"]) == 7

    def test_both_directions_at_once(self):
        with self.party() as party:
            for _ in range(6):
                party.exchange(0, 1, 1, 3 * MIB)
                party.exchange(1, 0, 1, 3 * MIB)
            party.settle()
            assert party.ends[0].moved() == {"sent": {1: [6, 18 * MIB]}, "received": {1: [6, 18 * MIB]}}

    def test_ten_thousand_small_messages(self):
        sizes = [random.Random(2).randrange(100) for _ in range(10_000)]
        with self.party() as party:
            for number, size_bytes in enumerate(sizes):
                party.exchange(0, 1, number, size_bytes)
                if number % 50 == 0:
                    party.poll(1)
            party.settle()
            assert party.ends[1].moved()["received"] == {0: [10_000, sum(sizes)]}

    def test_a_rank_without_peers_just_waits(self):
        with self.party(1) as party:
            before_ns = now_ns()
            assert party.poll(0, 1_000_000) == []
            assert now_ns() - before_ns >= 1_000_000
            assert party.ends[0].moved() == {"sent": {}, "received": {}}
            assert party.ends[0].progress_bytes() == 0

    # ---- times

    def test_times_are_true(self):
        with self.party() as party:
            pairs = [party.exchange(0, 1, 1, 100_000) for _ in range(20)]
            party.settle()
            arrivals = [party.done[receive] for receive, _ in pairs]
            for receive, send in pairs:
                arrived, acknowledged = party.done[receive], party.done[send]
                assert arrived.posted_ns <= arrived.first_byte_ns <= arrived.done_ns <= acknowledged.done_ns
                assert acknowledged.first_byte_ns <= arrived.done_ns
            if self.flows == 1:  # else a later one may be here before, though not told before
                assert [a.done_ns for a in arrivals] == sorted(a.done_ns for a in arrivals)
            assert {a.flow for a in arrivals} == set(range(self.flows))

    def test_poll_waits_as_long_as_told(self):
        with self.party() as party:
            party.exchange(0, 1)
            party.settle()
            for timeout_ns, soon_ns in ((0, 200_000), (300_000, 900_000), (3_300_000, 3_900_000)):
                waits = self.waits_until(party, timeout_ns, soon_ns)
                assert min(waits) >= timeout_ns
                assert min(waits) < soon_ns, "a wait is rounded up"

    def waits_until(self, party, timeout_ns, soon_ns):
        """Waits, until one was short or very many were not: the machine may be busy for a long time."""
        waits = []
        while not waits or (min(waits) >= soon_ns and len(waits) < 500):
            before_ns = now_ns()
            assert party.poll(0, timeout_ns) == []
            waits.append(now_ns() - before_ns)
        return waits

    def test_a_rank_waiting_in_poll_is_woken_as_soon_as_something_completed(self):
        with self.party() as party, ThreadPoolExecutor(1) as pool:
            handle = party.recv(1, 0)
            before_ns = now_ns()
            waiting = pool.submit(party.poll, 1, PATIENCE_S * 10**9)
            time.sleep(0.02)
            send = party.send(0, 1)
            party.settle(ranks=(0,), handles=[send])
            assert [c.handle for c in waiting.result(PATIENCE_S)] == [handle]
            assert now_ns() - before_ns < PATIENCE_S * 10**9 / 2

    # ---- bounds

    def test_a_receiver_that_does_not_poll_costs_its_sender_no_memory(self):
        messages, size_bytes = 300, 64 << 10
        with self.party(3) as party:
            tracemalloc.start()
            try:
                posts = [party.exchange(0, 1, number, size_bytes) for number in range(messages)]
                party.poll_for(0.05, 0)
                held = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert held < messages * 4_000  # the posts themselves, not the 20 MB that they stand for
            other = party.exchange(0, 2, 1, 10 * size_bytes)
            party.settle(ranks=(0, 2), handles=other)  # nor does it hold up the others
            party.settle(handles=[handle for pair in posts for handle in pair])
            assert party.ends[1].moved() == party.truth(1)

    def test_sizes_and_peers_are_checked(self):
        with self.party() as party:
            with pytest.raises(RunError, match="rank 5"):
                party.ends[0].post_send(1, 5, 0, 1)
            party.exchange(0, 1)
            party.settle(handles=[0, 1])

    # ---- cancel

    def test_a_receive_can_be_cancelled_until_it_is_matched(self):
        with self.party() as party:
            first, second = party.recv(1, 0), party.recv(1, 0)
            assert party.ends[1].cancel(first)
            assert not party.ends[1].cancel(first)
            assert not party.ends[1].cancel(999)
            send = party.send(0, 1)
            party.settle(handles=[second, send])
            party.poll_for(0.01, 0, 1)
            assert first not in party.done
            assert not party.ends[1].cancel(second)
            assert not party.ends[0].cancel(send)

    def test_a_send_that_was_cancelled_never_arrives_and_the_others_do(self):
        with self.party() as party:
            sends = [party.send(0, 1, tag, MIB) for tag in range(20)]
            receives = [party.recv(1, 0, tag, MIB) for tag in range(20)]
            gone = {tag for tag in (19, 10, 11, 0) if party.ends[0].cancel(sends[tag])}
            kept = [tag for tag in range(20) if tag not in gone]
            party.settle(handles=[handles[tag] for tag in kept for handles in (sends, receives)])
            party.poll_for(0.01, 0, 1)
            assert len(party.done) == 2 * len(kept)
            assert party.ends[1].moved()["received"] == {0: [len(kept), len(kept) * MIB]}

    # ---- ends

    def test_peers_that_never_open_are_named_at_the_deadline(self):
        ends = dict(enumerate(self.make(4)))
        try:
            endpoints = {rank: end.open() for rank, end in ends.items()}
            for rank in (1, 3):
                ends.pop(rank).close()
            before_ns = now_ns()
            raised = connect_all(ends, endpoints, 0.3)
            assert SOON_NS <= now_ns() - before_ns < 20 * SOON_NS
            for rank in (0, 2):
                numbers = re.findall(r"(?:ranks|,) (\d)\b", raised[rank].what)
                assert {"1", "3"} <= set(numbers), raised[rank].what
                assert raised[rank].where == f"rank {rank}"
        finally:
            for end in ends.values():
                end.close()

    def test_a_peer_that_leaves_when_all_is_done_is_no_error(self):
        with self.party(3) as party:
            party.exchange(0, 1)
            party.settle()
            party.dies(1)
            party.poll_for(0.02, 0, 2)
            handles = party.exchange(2, 0, 1, 100_000)
            party.settle(ranks=(0, 2), handles=handles)

    def test_what_a_peer_sent_before_it_left_still_arrives(self):
        with self.party() as party:
            receive, _ = party.exchange(0, 1, 1, 1_000)
            party.poll(0)
            party.dies(0)
            party.settle(ranks=(1,), handles=[receive])

    def dead(self, party, rank, peer):
        """Poll until the loss of `peer` is told."""
        with pytest.raises(RunError, match=f"rank {peer} is gone") as caught:
            party.poll_for(PATIENCE_S / 3, rank)
        assert f"rank {rank}" in caught.value.where
        return caught.value.what

    def test_a_peer_that_dies_with_a_receive_outstanding_is_named(self):
        with self.party() as party:
            party.recv(1, 0, 1, 1_000)
            party.poll(1)
            party.dies(0)
            assert "0 sends to it and 1 receives" in self.dead(party, 1, 0)

    def refused(self, post, party, rank):
        """A post to or from a peer that is known to be gone fails, at once or in the next poll."""
        try:
            post()
        except RunError as error:
            assert re.match(f"rank {1 - rank} is gone", error.what)  # noqa: PT017 - or else poll tells it
        else:
            self.dead(party, rank, 1 - rank)

    def test_a_receive_from_a_peer_that_is_gone_is_refused(self):
        with self.party() as party:
            party.dies(0)
            party.poll_for(0.02, 1)
            self.refused(lambda: party.recv(1, 0), party, 1)

    def test_a_send_to_a_peer_that_is_gone_is_refused(self):
        with self.party() as party:
            party.dies(1)
            party.poll_for(0.02, 0)
            self.refused(lambda: party.send(0, 1), party, 0)

    def test_close_may_be_called_twice(self):
        with self.party() as party:
            for rank in (0, 1):
                party.ends[rank].close()

    def test_counts_are_right_after_a_random_exchange(self):
        choose = random.Random(3)
        with self.party(4) as party:
            late = Counter()
            for _ in range(300):
                source, destination = choose.sample(range(4), 2)
                key = (source, destination, choose.randrange(3), choose.choice([0, 1, 999, 50_000]))
                party.send(*key)
                late[key] += 1
                if choose.random() < 0.5:
                    party.poll(choose.randrange(4))
            for (source, destination, tag, size_bytes), number in late.items():
                for _ in range(number):
                    party.recv(destination, source, tag, size_bytes)
            party.settle()
            assert [party.ends[rank].moved() for rank in range(4)] == [party.truth(rank) for rank in range(4)]


class NetworkConformance(Conformance):
    """For transports whose messages take time: what happens in the middle of one. Give `make_slow` as well."""

    def make_slow(self, ranks):
        """Ends that need far more than a second for 64 MiB, or whose peers take nothing in while they do not poll."""
        raise NotImplementedError

    def test_a_sender_that_dies_in_the_middle_of_a_message_is_named(self):
        with Party(self.make_slow(2)) as party:
            party.exchange(0, 1, 1, 64 * MIB)
            for rank in (0, 1) * 3:
                party.poll(rank)
            party.dies(0)
            assert "1 receives from it" in self.dead(party, 1, 0)

    def test_a_receiver_that_dies_in_the_middle_of_a_message_is_named(self):
        with Party(self.make_slow(2)) as party:
            party.exchange(0, 1, 1, 64 * MIB)
            for rank in (0, 1) * 3:
                party.poll(rank)
            party.dies(1)
            assert "1 sends to it" in self.dead(party, 0, 1)
