"""An experiment as one block of bytes."""

import io
import tarfile
from pathlib import Path

import pytest

from genie.errors import InputError
from genie.formats.bundle import pack, unpack
from genie.formats.experiment import load_experiment

ROOT = Path(__file__).resolve().parents[2]


def test_the_quickstart_survives_the_way(tmp_path):
    before = load_experiment(ROOT / "examples/quickstart/experiment.yaml")
    after, more = unpack(pack(before, {"secret": "s"}), tmp_path)
    assert more == {"secret": "s"}
    for role in ("system", "network", "testbed"):
        assert getattr(after, role).read_bytes() == getattr(before, role).read_bytes()
        assert getattr(after, role).is_relative_to(tmp_path)
    assert (after.name, after.model, after.profile) == (before.name, before.model, before.profile)
    assert len(list((tmp_path / "traces").iterdir())) == 8


def test_a_file_that_is_gone_is_named(tmp_path):
    experiment = load_experiment(ROOT / "examples/quickstart/experiment.yaml")
    object.__setattr__(experiment, "system", tmp_path / "gone.json")
    with pytest.raises(InputError, match="cannot be read"):
        pack(experiment, {})


@pytest.mark.parametrize("data", [b"", b"no tar at all", bytes(1024)])
def test_what_is_no_bundle_is_refused(tmp_path, data):
    with pytest.raises(InputError, match="no bundle"):
        unpack(data, tmp_path)


@pytest.mark.parametrize("name", ["../out", "/etc/out-of-a-bundle", "a/../../out"])
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(InputError, match="none of ours"):
        unpack(data.getvalue(), tmp_path / "in")


def test_links_are_refused(tmp_path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("link")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(entry)
    with pytest.raises(InputError, match="none of ours"):
        unpack(data.getvalue(), tmp_path)
