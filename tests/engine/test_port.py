"""The engine's way out under the rendezvous protocol."""

import pytest

from genie.core.schedule import GRANT_BYTES
from genie.engine.events import Origin, PostRecv, PostSend
from genie.engine.port import Port
from genie.errors import InputError

ORIGIN = Origin(0, 0, 0, 0)
BIT_31, BIT_32 = 1 << 31, 1 << 32


def sizes(port, size_bytes):
    """Of what a send and a receive post, grants first."""
    port.send(1, 5, size_bytes, ORIGIN)
    port.receive(1, 6, size_bytes, ORIGIN, lambda: None)
    first = port.take_actions()
    for action in first:
        port.answer(action.handle) if isinstance(action, PostRecv) else None
    port.answer(first[1].handle)
    return [action.size_bytes for action in first], [action.size_bytes for action in port.take_actions()]


@pytest.mark.parametrize("size_bytes", [1, BIT_31 - 1])
def test_a_message_waits_for_its_grant(size_bytes):
    port = Port(rendezvous=True, narrow=True)
    grants, messages = sizes(port, size_bytes)
    assert grants == [GRANT_BYTES, GRANT_BYTES]
    assert messages == [size_bytes, size_bytes]


def test_astra_sim_keeps_32_bits_of_a_size_that_waits():
    assert sizes(Port(rendezvous=True, narrow=True), BIT_32 + 7)[1] == [7, 7]


def test_with_extensions_all_of_it_is_sent():
    assert sizes(Port(rendezvous=True), BIT_32 + 7)[1] == [BIT_32 + 7] * 2


def test_what_would_be_negative_there_is_refused():
    with pytest.raises(InputError, match="negative"):
        Port(rendezvous=True, narrow=True).send(1, 5, BIT_31, ORIGIN)


def test_without_rendezvous_sizes_are_what_they_are():
    port = Port(rendezvous=False, narrow=True)
    port.send(1, 5, BIT_31, ORIGIN)
    assert [type(action) for action in port.actions] == [PostSend]
    assert port.actions[0].size_bytes == BIT_31
