"""What an experiment may say to the verbs transport."""

import itertools

import pytest

from genie.errors import InputError
from genie.replay.transports.choice import CHOICES, choice
from genie.replay.transports.verbs_options import SETTINGS, VerbsOptions, flow_label, read_settings, roce_port
from genie.replay.transports.verbs_units import source_port_of


def test_settings_are_in_physical_units():
    given = {
        "operation": "send",
        "ack_timeout": "20 ms",
        "give_up": "0.1 s",
        "slot": "256 KiB",
        "path_mtu": 1024,
        "traffic_class": 104,
        "completions": "spin",
        "device": "mlx5_0",
    }
    choice("verbs").check(given)
    options = VerbsOptions("10.0.0.1", bytes(32), **read_settings(given))
    assert (options.operation, options.slot_bytes, options.path_mtu_bytes) == ("send", 256 << 10, 1024)
    assert (options.ack_timeout_ns, options.give_up_ns) == (20_000_000, 100_000_000)
    assert not options.events
    assert options.device == "mlx5_0"


def test_every_setting_is_a_field_of_the_options():
    assert {field for field, _ in SETTINGS.values()} <= set(VerbsOptions.__dataclass_fields__)
    assert read_settings({}) == {"events": True}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"colour": 1}, "verbs has no option colour"),
        ({"completions": "sometimes"}, "events or spin"),
        ({"paths": "random"}, "fixed or device"),
        ({"slots": "many"}, "slots cannot be 'many'"),
        ({"slot": "5 apples"}, "no size"),
        ({"ack_timeout": 7}, "no duration"),
        ({"operation": "read"}, "write or send"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_brought_up(given, told):
    with pytest.raises(InputError, match=told):
        CHOICES["verbs"].check(given)


def test_paths_are_fixed_by_the_source_port_that_the_label_gives():
    flows = list(itertools.product(range(8), range(8), range(4)))
    ports = [roce_port(8, *flow, {}) for flow in flows]
    assert len(set(ports)) == len(flows)
    assert min(ports) >= 0xC000
    assert [source_port_of(flow_label(8, *flow, {})) for flow in flows] == ports
    assert flow_label(8, 0, 1, 0, {"paths": "device"}) == 0
