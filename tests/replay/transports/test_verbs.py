"""The verbs transport as far as it can be looked at without a device; tests/testbed/test_rdma_lab.py has the rest."""

import pytest

from genie.errors import InputError, NotReadyError, RunError
from genie.replay.transports import verbs, verbs_library
from genie.replay.transports.verbs import VerbsTransport
from genie.replay.transports.verbs_options import VerbsOptions

SECRET = bytes(32)


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"secret": b"short"}, "32 bytes"),
        ({"operation": "read"}, "write or send"),
        ({"flows": 0}, "flows must lie in 1 to 64"),
        ({"traffic_class": 256}, "traffic_class"),
        ({"slots": 1}, "slots"),
        ({"slot_bytes": 1 << 30}, "slot_bytes"),
        ({"ack_timeout_ns": 0}, "acknowledgement time-out"),
        ({"give_up_ns": 1}, "before the time-out"),
    ],
)
def test_options_are_checked(kwargs, told):
    with pytest.raises(InputError, match=told):
        VerbsOptions(**({"address": "10.0.0.1", "secret": SECRET} | kwargs))


def test_a_path_mtu_that_does_not_exist_is_refused():
    with pytest.raises(NotReadyError, match="does not exist"):
        VerbsOptions("10.0.0.1", SECRET, path_mtu_bytes=1500)


def test_without_a_device_it_says_so(monkeypatch):
    monkeypatch.setattr(verbs, "survey", lambda: ([], []))
    end = VerbsTransport(0, VerbsOptions("10.0.0.1", SECRET))
    with pytest.raises(NotReadyError, match="no RDMA device on this host") as caught:
        end.open()
    assert "rdma link add" in caught.value.fix
    with pytest.raises(RunError, match="before open"):
        end.connect({}, 0)
    end.close()
    end.close()


def test_without_pyverbs_it_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(verbs_library.importlib, "import_module", missing)
    monkeypatch.setattr(verbs_library, "SYSTEM_PACKAGES", verbs_library.Path("/nowhere"))
    assert "pyverbs is not installed" in verbs_library.find_pyverbs()
    with pytest.raises(NotReadyError) as caught:
        verbs_library.survey()
    assert caught.value.fix == "sudo apt install python3-pyverbs"


def test_pyverbs_of_another_python_is_told(monkeypatch, tmp_path):
    def wrong(name):
        raise ImportError(f"cannot import name {name!r}")

    (tmp_path / "pyverbs").mkdir()
    monkeypatch.setattr(verbs_library.importlib, "import_module", wrong)
    monkeypatch.setattr(verbs_library, "SYSTEM_PACKAGES", tmp_path)
    monkeypatch.setattr(verbs_library.sys, "path", list(verbs_library.sys.path))
    assert "pyverbs is not for Python 3" in verbs_library.find_pyverbs()
