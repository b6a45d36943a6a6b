import json

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from genie.cli import cli
from genie.errors import InputError
from genie.testbed.files import load_testbed, schema
from genie.testbed.inventory import expand, import_lab
from genie.testbed.lab import load_lab, parse_lab


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("gpu[1-2]-ib[0-1],login", ["gpu1-ib0", "gpu1-ib1", "gpu2-ib0", "gpu2-ib1", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("a,a,b", ["a", "b"]),
    ],
)
def test_slurm_lists(text, names):
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[3-1]", "n[1-2", "n[a-b]", "n[1-99999999]", "n[1-64][1-65]"])
def test_wrong_slurm_lists_are_refused(text):
    with pytest.raises(InputError):
        expand(text)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 4))
def test_a_range_is_as_long_as_its_ends_say(first, more, width):
    names = expand(f"n[{first:0{width}}-{first + more:0{width}}]")
    assert len(names) == more + 1
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))


def test_hostfiles_of_open_mpi_and_mpich(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two kinds\nalpha slots=4 max_slots=8\nbeta:2\ngamma\nalpha slots=1\n")
    lab = import_lab("hostfile", str(path), "x")
    assert [(host.name, host.ranks) for host in lab.hosts] == [("alpha", 5), ("beta", 2), ("gamma", 1)]
    assert lab.ranks.count("alpha") == 5


def test_a_line_that_is_none_of_a_hostfile_is_named(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("alpha\nbeta colour=red\n")
    with pytest.raises(InputError, match="line 2"):
        import_lab("hostfile", str(path), "x")


INI = """
[gpu]
node[1:2] ansible_host=10.1.0.9
node3 genie_rdma=mlx5_0 genie_address=192.168.0.3 genie_ranks=2
[gpu:vars]
colour=red
[all:children]
gpu
"""
YAML = """
all:
  vars: { colour: red }
  children:
    gpu:
      hosts:
        node1: { ansible_host: 10.1.0.1 }
        node2:
"""


def test_ansible_ini(tmp_path):
    path = tmp_path / "inventory"
    path.write_text(INI)
    lab = import_lab("ansible", str(path), "x")
    assert [host.management for host in lab.hosts] == ["10.1.0.9", "10.1.0.9", "node3"]
    assert (lab.hosts[2].nics[0].rdma, lab.hosts[2].nics[0].address) == ("mlx5_0", "192.168.0.3")
    assert lab.ranks == ("node1", "node2", "node3", "node3")


def test_ansible_yaml(tmp_path):
    path = tmp_path / "inventory.yml"
    path.write_text(YAML)
    assert [(host.name, host.management) for host in import_lab("ansible", str(path), "x").hosts] == [
        ("node1", "10.1.0.1"),
        ("node2", "node2"),
    ]


def test_the_command_writes_a_file_that_is_a_lab_and_follows_the_schema(tmp_path):
    path = tmp_path / "lab.yml"
    done = CliRunner().invoke(cli, ["testbed", "import", "slurm", "n[1-3]", "--output", str(path)])
    assert "3 hosts, 3 ranks" in done.output
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())
    assert load_lab(path).ranks == ("n1", "n2", "n3")
    told = json.loads(CliRunner().invoke(cli, ["testbed", "show", str(path), "--json"]).output)
    assert (told["kind"], told["hosts"]) == ("lab", 3)
    with pytest.raises(InputError, match="is a lab"):
        load_testbed(path)


HOSTS = [{"name": "a", "management": "10.0.0.1", "nics": [{"netdev": "eth0", "address": "10.9.0.1"}]}]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hosts": []}, "hosts"),
        ({"hosts": HOSTS * 2}, "two nodes"),
        ({"hosts": [*HOSTS, HOSTS[0] | {"name": "b"}]}, "10.9.0.1"),
        ({"cabling": [["a:eth0", "leaf"]]}, "leaf"),
        ({"placement": ["b"]}, "rank 0"),
        ({"switches": [{"name": "s", "counters": "telnet"}]}, "counters"),
        ({"hosts": [HOSTS[0] | {"nics": [{"address": "somewhere"}]}]}, "address"),
        ({"colour": "red"}, "colour"),
        ({"hosts": [HOSTS[0] | {"ranks": 0}]}, "no host runs a rank"),
    ],
)
def test_labs_that_do_not_hang_together_are_refused(changes, told):
    with pytest.raises(InputError) as error:
        parse_lab({"name": "x", "kind": "lab", "hosts": HOSTS} | changes, "lab.yml")
    assert told in str(error.value)
    assert "lab.yml" in str(error.value)
