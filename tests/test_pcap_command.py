"""genie pcap and genie testbed paths on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from genie.formats.icrc import Way, sealed
from genie.formats.pcap import Frame, write_pcap
from genie.formats.roce import Opcode, Packet, Reth

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = str(ROOT / "examples/quickstart/experiment.yaml")
WAY = Way.between("10.0.0.1", "10.0.0.5", 50_000)


def told(*words):
    """A process of its own: as an ordinary user some commands start again inside a user namespace."""
    done = subprocess.run([sys.executable, "-m", "genie", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def capture(tmp_path):
    packet = Packet(Opcode.WRITE_ONLY_IMM, 17, 3, reth=Reth(5, 1, 100), immediate=0, payload=bytes(100))
    rows = []
    for number in range(2):
        data = sealed(WAY, packet.body())
        udp = b"\xc3\x50\x12\xb7" + (8 + len(data)).to_bytes(2, "big") + b"\0\0" + data
        head = b"\x45\0" + (20 + len(udp)).to_bytes(2, "big") + b"\0\0\x40\0\x40\x11\0\0" + WAY.source + WAY.destination
        frame = bytearray(bytes(12) + b"\x08\0" + head + udp)
        frame[-20] ^= number
        rows.append(Frame(number, bytes(frame), len(frame)))
    path = tmp_path / "x.pcap"
    write_pcap(path, rows)
    return str(path)


def test_a_capture_as_json(capture):
    code, out, _ = told("pcap", capture, "--json")
    about = json.loads(out)
    assert code == 0
    assert (about["packets"], about["roce_packets"], about["icrc_errors"], about["icrc_checked"]) == (2, 2, 1, 2)
    assert about["flows"][0]["retransmitted"] == 1
    assert [message["size_bytes"] for message in about["messages"]] == [100]


def test_a_capture_as_tables(capture):
    code, out, _ = told("pcap", capture, "--messages", "--no-icrc")
    assert code == 0
    assert "10.0.0.5" in out
    assert "icrc" not in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pcap", "absent.pcap"), "cannot be read"),
        (("pcap", __file__), "like no capture"),
        (("testbed", "paths", str(ROOT / "testbed/leaf-spine-8.yml"), "--ports", "x"), "no ports"),
        (
            ("replay", EXPERIMENT, "--transport", "roce", "--transport-option", "mtu=9"),
            "MTU",
        ),
        (("replay", EXPERIMENT, "--transport", "pigeon"), "'pigeon'"),
    ],
)
def test_wrong_words_are_one_sentence_and_code_2(words, sentence):
    code, _, err = told(*words)
    assert code == 2
    assert sentence in err
    assert err.startswith("genie: ")
    assert "Traceback" not in err


def test_a_run_that_is_no_replay_cannot_be_joined(capture, tmp_path):
    code, _, err = told("pcap", capture, "--run", str(tmp_path))
    assert code == 2
    assert "Traceback" not in err
