import pytest

from genie.core.netmodel import Dimension, DimensionModel, Estimate, Topology
from genie.core.system import MemoryKind, Optimization
from genie.core.workload import CollectiveKind
from genie.errors import InputError
from genie.formats.astra import (
    read_logical_topology,
    read_memory,
    read_network,
    read_system,
    system_notes,
    write_network,
)
from genie.formats.comm_groups import read_comm_groups

GOOD = "topology: [Ring, Switch]\nnpus_count: [4, 2]\nbandwidth: [50.0, 25]\nlatency: [500, 0.5]\nextra: 1\n"


def given(tmp_path, text, name="file"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_network_units(tmp_path):
    model = read_network(given(tmp_path, GOOD))
    assert [d.bandwidth_bps.value for d in model.dimensions] == [50 * 2**33, 25 * 2**33]
    assert [d.latency_ns.value for d in model.dimensions] == [500, 0.5]
    assert model.ranks == 8


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[Ring, Switch]", "Ring", "must be a list"),
        ("[Ring, Switch]", "[Ring, Torus]", "unknown topology"),
        ("[4, 2]", "[4]", "one entry a dimension"),
        ("[4, 2]", "[4, 1]", "more than one rank"),
        ("[50.0, 25]", "[50.0, 0]", "above zero"),
        ("[500, 0.5]", "[500, -1]", "negative"),
        ("[500, 0.5]", "[500, fast]", "no number"),
        ("latency: [500, 0.5]", "", "latency is missing"),
        ("topology", "{", "no YAML"),
    ],
)
def test_what_astra_sim_aborts_on_is_refused(tmp_path, old, new, message):
    with pytest.raises(InputError, match=message):
        read_network(given(tmp_path, GOOD.replace(old, new)))


def test_aware_takes_one_dimension(tmp_path):
    with pytest.raises(InputError, match="one dimension"):
        read_network(given(tmp_path, GOOD), aware=True)


def test_a_fitted_network_comes_back(tmp_path):
    link = Estimate(123_456_789_012.0, 5e8, 99), Estimate(777.25, 3.0, 99)
    model = DimensionModel((Dimension(Topology.RING, 8, *link),))
    write_network(tmp_path / "n.yml", model, "two\nlines")
    again = read_network(tmp_path / "n.yml")
    assert again.dimensions[0].bandwidth_bps.value == model.dimensions[0].bandwidth_bps.value
    assert again.dimensions[0].latency_ns.value == 777.25
    assert "standard errors" in (tmp_path / "n.yml").read_text()


def test_system_defaults_and_conversions(tmp_path):
    system = read_system(given(tmp_path, '{"unknown": 1}'))
    assert (system.splits, system.active_chunks, system.endpoint_delay_ns) == (0, 1, 10)
    text = (
        '{"endpoint-delay": 10.7, "local-mem-bw": 1600, "collective-optimization": "localBWAware",'
        '"all-reduce-implementation": ["ring", "direct"]}'
    )
    system = read_system(given(tmp_path, text), injection_scale=2.0)
    assert system.endpoint_delay_ns == 20
    assert system.local_mem_bytes_per_s == 1.6e12
    assert system.optimization is Optimization.LOCAL_BW_AWARE
    assert system.algorithms == {CollectiveKind.ALL_REDUCE: ("ring", "direct")}
    assert read_system(given(tmp_path, "{}"), injection_scale=2.0).endpoint_delay_ns == 10


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"endpoint-delay": "ten"}',
        '{"scheduling-policy": "RANDOM"}',
        '{"active-chunks-per-dimension": 0}',
        '{"all-reduce-implementation": "ring"}',
        '{"model-shared-bus": 1}',
    ],
)
def test_bad_systems_are_refused(tmp_path, text):
    with pytest.raises(InputError, match="file"):
        read_system(given(tmp_path, text))


def test_memory_and_topology(tmp_path):
    text = (
        '{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-latency": 100,'
        '"remote-mem-bw": 50, "num-npus-per-node": 2}'
    )
    memory = read_memory(given(tmp_path, text))
    assert (memory.kind, memory.latency_ns, memory.bytes_per_ns, memory.ranks_per_node) == (
        MemoryKind.PER_NODE,
        100,
        50,
        2,
    )
    assert read_logical_topology(given(tmp_path, '{"logical-dims": ["8", "4"]}')) == (8, 4)
    for bad in ('{"memory-type": "MAGIC"}', '{"memory-type": "MEMORY_POOL"}'):
        with pytest.raises(InputError):
            read_memory(given(tmp_path, bad))


@pytest.mark.parametrize("text", ['{"0": [0]}', '{"a": [0]}', '{"1": 3}', '{"1": [0, 0]}', '{"1": [-1]}', "[]"])
def test_bad_groups_are_refused(tmp_path, text):
    with pytest.raises(InputError):
        read_comm_groups(given(tmp_path, text))


def test_groups_keep_their_order(tmp_path):
    (group,) = read_comm_groups(given(tmp_path, '{"3": [2, 0, 1]}'))
    assert (group.name, group.ranks) == ("3", (2, 0, 1))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_network, GOOD.replace("25]", "1" + "0" * 400 + "]")),
        (read_network, GOOD.replace("25]", ".nan]")),
        (read_network, GOOD.replace("extra: 1", "extra: 2001-13-45")),
        (read_network, GOOD.replace("[4, 2]", "[4, 99999999999]")),
        (read_network, "[" * 5000),
        (read_system, '{"endpoint-delay": NaN}'),
        (read_system, '{"endpoint-delay": 1e400}'),
        (read_system, '{"endpoint-delay": -5}'),
        (read_system, '{"preferred-dataset-splits": -1}'),
        (read_system, '{"local-mem-bw": -1}'),
        (read_system, '{"active-chunks-per-dimension": 1' + "0" * 5000 + "}"),
        (read_system, '{"per-node-custom-implementation": []}'),
        (read_system, "[" * 100_000),
        (read_memory, '{"memory-type": "MEMORY_POOL", "remote-mem-bw": 1, "remote-mem-latency": -1}'),
        (read_logical_topology, '{"logical-dims": ["²"]}'),
        (read_logical_topology, '{"logical-dims": ["' + "9" * 5000 + '"]}'),
        (read_comm_groups, '{"²": [0]}'),
        (read_comm_groups, '{"01": [0]}'),
        (read_comm_groups, '{"1": [99999999999]}'),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else value.__name__,
)
def test_nothing_in_a_file_is_more_than_an_input_error(tmp_path, read, text):
    with pytest.raises(InputError, match="file"):
        read(given(tmp_path, text))


def test_numbers_may_be_spelled_as_astra_sim_reads_them(tmp_path):
    model = read_network(given(tmp_path, GOOD.replace("50.0, 25", '"50.0", 2.5e1').replace("[500", "[5e2")))
    assert [d.bandwidth_bps.value for d in model.dimensions] == [50 * 2**33, 25 * 2**33]
    assert model.dimensions[0].latency_ns.value == 500


def test_a_folder_and_a_device_are_no_configuration(tmp_path):
    for path in (tmp_path, "/dev/null"):
        with pytest.raises(InputError, match=r"director|no regular file"):
            read_system(path)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0])
def test_the_injection_scale_is_a_factor(tmp_path, scale):
    with pytest.raises(InputError, match="injection scale"):
        read_system(given(tmp_path, '{"endpoint-delay": 10}'), injection_scale=scale)


def test_keys_without_effect_are_told(tmp_path):
    path = given(tmp_path, '{"endpoint-dealy": 5, "L": 1, "boost-mode": 1, "whatever": 2, "peak-perf": 1}')
    notes = system_notes(path)
    assert len(notes) == 4
    assert "did you mean endpoint-delay" in notes[0]
    assert "model-shared-bus" in notes[1]
    assert "whatever is ignored." in notes[3]


def test_aliases_are_not_spelled_out_in_messages(tmp_path):
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 12))
    for key in ("topology", "npus_count", "bandwidth", "latency"):
        text += f"{key}: *a11\n"
    with pytest.raises(InputError) as error:
        read_network(given(tmp_path, text))
    assert len(str(error.value)) < 300 + len(str(tmp_path))
