import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from genie.core import testbed as core
from genie.core.testbed import LinkSpec, leaf_spine
from genie.testbed.addressing import PREFIX, ports

LINK = LinkSpec(200_000_000_000, 0, 1 << 20)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 8))
def test_addresses_and_interfaces_are_unique_and_ends_agree(leaves, spines, per_leaf):
    nodes, cables = leaf_spine(leaves * per_leaf, leaves, spines, LINK, LINK, 1)
    found = ports(core.Testbed("t", nodes, cables, ("h0",)))
    assert len({port.address for port in found}) == len(found)
    assert len({port.mac for port in found}) == len(found)
    assert len({(port.node, port.name) for port in found}) == len(found)
    by_link = {(port.node, port.peer): port for port in found}
    for port in found:
        far = by_link[port.peer, port.node]
        assert port.peer_address == far.address
        assert port.index != far.index
        network = ipaddress.ip_interface(f"{port.address}/{PREFIX}").network
        assert ipaddress.ip_address(far.address) in network.hosts()
