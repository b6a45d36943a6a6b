"""Congestion control on a simulated link, and the strategies by themselves."""

import pytest
from shared_link import SharedLink, jain

from genie.replay.transports.roce.control import CONTROLS, ControlSettings, Dcqcn, Dctcp

GBPS = 1_000_000_000
MS = 1_000_000


@pytest.mark.parametrize(
    ("control", "red", "dilation", "fair"),
    [("dcqcn", (5_000, 200_000, 0.1), 40, 0.98), ("dctcp", (100_000, 100_000, 1.0), 1, 0.95)],
)
def test_two_flows_share_a_link_fairly_without_losses_once_they_have_converged(control, red, dilation, fair):
    link = SharedLink(2, control, GBPS, red=red, starts_ns=(0, 3 * MS), dilation=dilation)
    link.run(800 * MS)
    told = link.run(1_200 * MS)
    assert jain(told.taken_bytes) >= fair
    assert told.dropped == 0
    assert sum(told.taken_bytes) * 8 / 0.4 >= 0.95 * GBPS


def test_without_control_the_queue_overflows():
    link = SharedLink(4, "none", GBPS)
    assert link.run(50 * MS).dropped > 100


def test_dcqcn_cuts_and_recovers():
    control = Dcqcn(64, GBPS)
    control.on_notification(0)
    assert control.rate_bps == GBPS / 2
    control.on_notification(10_000)  # within the interval: no second cut
    assert control.rate_bps == GBPS / 2
    for at in range(1, 6):
        control.on_acknowledged(1, marked=False, now_ns=at * 55_000)
    assert GBPS * 0.95 < control.rate_bps < GBPS
    for at in range(6, 200):
        control.on_acknowledged(1, marked=False, now_ns=at * 55_000)
    assert control.rate_bps == GBPS


def test_dilation_stretches_time_and_shrinks_steps():
    plain, slow = Dcqcn(64, 400 * GBPS), Dcqcn(64, 4 * GBPS, 100)
    for control, factor in ((plain, 1), (slow, 100)):
        for at in (0, 60_000, 120_000, 500_000):
            control.on_notification(at * factor)
        control.on_acknowledged(1, marked=False, now_ns=1_000_000 * factor)
    assert plain.rate_bps == pytest.approx(100 * slow.rate_bps)


def test_dcqcn_paces():
    control = Dcqcn(64, GBPS)
    now_ns = 0
    for _ in range(1_000):
        now_ns = max(now_ns, control.may_send_ns())
        control.on_sent(1, 4_112, now_ns)
    assert now_ns == pytest.approx(999 * 4_112 * 8, rel=0.01)


def test_dctcp_follows_the_share_of_marks():
    control = Dctcp(100)
    for _ in range(300):
        control.on_acknowledged(10, marked=True, now_ns=0)
    assert control.window == 2
    for _ in range(3_000):
        control.on_acknowledged(10, marked=False, now_ns=0)
    assert control.window == 100
    control.on_loss(0)
    assert control.window == 50


@pytest.mark.parametrize("name", CONTROLS)
def test_windows_never_close(name):
    control = CONTROLS[name](ControlSettings(8, GBPS))
    for at in range(1_000):
        control.on_loss(at * MS)
        control.on_notification(at * MS)
        control.on_acknowledged(1, marked=True, now_ns=at * MS)
    assert control.window >= 2
    assert control.may_send_ns() <= 1_000 * MS
