import shutil
import subprocess

import pytest
from astra_fake import fake

from genie.errors import InputError, NotReadyError
from genie.simulate.astra_binary import NAMES, FrontEnd, find_binary, recognise


@pytest.mark.parametrize(
    ("mark", "front_end"),
    [
        (b"\x00N27AstraSim25CongestionAwareNetworkApiE\x00", FrontEnd.AWARE),
        (b"\x00N27AstraSim27CongestionUnawareNetworkApiE\x00", FrontEnd.UNAWARE),
        (b"\x00ASTRA-sim + NS3\x00", FrontEnd.NS3),
        (b"\x00HTSimNetworkApi\x00CongestionUnawareNetworkApi", FrontEnd.HTSIM),
    ],
)
def test_front_ends_are_told_by_content(tmp_path, mark, front_end):
    path = tmp_path / "renamed"
    path.write_bytes(b"\x7fELF" + mark + b"comm-group-configuration\x00")
    found = recognise(path)
    assert (found.front_end, found.version) == (front_end, "2.0 (no logging configuration)")


def test_wrapper_scripts_are_told_by_name(tmp_path):
    path = tmp_path / "docker-AstraSim_Analytical_Congestion_Aware.sh"
    path.write_text("#!/bin/sh\nexec docker run astra-sim aware $*\n")
    assert recognise(path).front_end is FrontEnd.AWARE
    other = path.rename(tmp_path / "something.sh")
    with pytest.raises(InputError, match="none of ASTRA-sim's"):
        recognise(other)
    other.write_text("")
    with pytest.raises(NotReadyError):
        recognise(other)


def test_option_before_environment_before_path(tmp_path, monkeypatch):
    places = {}
    for name in ("option", "environment", "path"):
        (tmp_path / name).mkdir()
        places[name] = fake(tmp_path / name, "").rename(tmp_path / name / "AstraSim_Analytical_Congestion_Unaware")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("GENIE_ASTRA_SIM", str(tmp_path / "environment"))
    assert find_binary(places["option"]).path == places["option"]
    assert find_binary().path == places["environment"]
    monkeypatch.delenv("GENIE_ASTRA_SIM")
    assert find_binary(front_end=FrontEnd.UNAWARE).path == places["path"]
    with pytest.raises(NotReadyError, match="AstraSim_HTSim"):
        find_binary(front_end=FrontEnd.HTSIM)
    with pytest.raises(InputError, match="asks for aware"):
        find_binary(places["option"], FrontEnd.AWARE)


def test_the_other_front_end_beside_it_will_do(tmp_path):
    unaware, aware = (
        fake(tmp_path, "").rename(tmp_path / NAMES[kind][0]) for kind in (FrontEnd.UNAWARE, FrontEnd.AWARE)
    )
    aware.write_text(aware.read_text().replace("CongestionUnaware", "CongestionAware"))
    assert find_binary(unaware, FrontEnd.AWARE).path == aware
    assert find_binary(unaware).path == unaware


def test_a_folder_is_searched_and_a_missing_or_plain_file_refused(tmp_path):
    deep = tmp_path / "build" / "bin"
    deep.mkdir(parents=True)
    program = fake(deep, "").rename(deep / "AstraSim_Analytical_Congestion_Unaware")
    assert find_binary(tmp_path).path == program
    with pytest.raises(NotReadyError, match="no such program"):
        find_binary(tmp_path / "nowhere")
    with pytest.raises(NotReadyError, match="holds no program"):
        find_binary(tmp_path, FrontEnd.NS3)
    program.chmod(0o644)
    with pytest.raises(NotReadyError, match="executed"):
        find_binary(program)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_version_is_the_checkouts(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "m")
    git("tag", "v9.9")
    assert find_binary(fake(tmp_path, "")).version.startswith("v9.9")
