"""Finding and building the rdma-lab's kernel, as far as nothing is compiled."""

import stat

import pytest

from genie.errors import NotReadyError
from genie.testbed import rdma_kernel
from genie.testbed.rdma_kernel import (
    CONFIGURATION,
    build,
    cached_kernel,
    choose_source,
    find_kernel,
    missing_packages,
)

LISTING = """linux-source-6.1 - Linux kernel source for version 6.1 with Debian patches
linux-source-6.12 - Linux kernel source for version 6.12 with Debian patches
linux-source-6.16 - Linux kernel source for version 6.16 with Debian patches
linux-source - Linux kernel source (meta-package)
"""


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GENIE_RDMA_KERNEL", raising=False)


def make(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_tested_source_is_preferred_and_the_newest_taken_where_it_is_not():
    assert choose_source(LISTING) == "linux-source-6.12"
    assert choose_source(LISTING.replace("6.12", "6.10")) == "linux-source-6.16"
    assert choose_source("linux-source-6.8 - Ubuntu's\n") == "linux-source-6.8"
    for nothing in ("", "linux-source-5.10 - too old\n"):
        with pytest.raises(NotReadyError, match="no kernel source package"):
            choose_source(nothing)


def test_a_kernel_is_found_in_the_cache_or_where_it_is_named(tmp_path, monkeypatch):
    with pytest.raises(NotReadyError, match="no kernel yet") as caught:
        find_kernel()
    assert caught.value.fix == "make rdma-lab"
    make(cached_kernel())
    assert find_kernel() == cached_kernel()
    monkeypatch.setenv("GENIE_RDMA_KERNEL", str(tmp_path / "mine"))
    with pytest.raises(NotReadyError, match="no kernel yet") as caught:
        find_kernel()
    assert "GENIE_RDMA_KERNEL" in caught.value.fix
    make(tmp_path / "mine")
    assert find_kernel() == tmp_path / "mine"


def test_another_configuration_is_another_kernel(tmp_path, monkeypatch):
    before = cached_kernel()
    other = tmp_path / "other.config"
    other.write_text(CONFIGURATION.read_text() + "CONFIG_VXLAN=y\n")
    monkeypatch.setattr(rdma_kernel, "CONFIGURATION", other)
    assert cached_kernel() != before


def test_what_can_never_be_is_told_before_anything_is_installed(monkeypatch):
    monkeypatch.setattr(rdma_kernel.platform, "machine", lambda: "aarch64")
    with pytest.raises(NotReadyError, match="x86-64, this is Linux on aarch64"):
        build()
    monkeypatch.undo()
    monkeypatch.setattr(rdma_kernel.shutil, "which", lambda _: None)
    with pytest.raises(NotReadyError, match="no Debian"):
        build()


def test_missing_packages_are_named_to_those_who_may_not_install_them(monkeypatch):
    if rdma_kernel.hindrance():
        monkeypatch.setattr(rdma_kernel, "hindrance", lambda: "")
    monkeypatch.setattr(rdma_kernel, "missing_packages", lambda _: ["flex", "bison"])
    monkeypatch.setattr(rdma_kernel.os, "geteuid", lambda: 1000)
    with pytest.raises(NotReadyError, match="packages are missing: flex bison") as caught:
        build()
    assert caught.value.fix == "sudo apt-get install -y --no-install-recommends flex bison"


@pytest.mark.skipif(bool(rdma_kernel.hindrance()), reason=f"no rdma-lab on such a machine: {rdma_kernel.hindrance()}")
def test_packages_that_are_not_there_are_seen():
    assert missing_packages(["dpkg", "no-such-package-at-all"]) == ["no-such-package-at-all"]


def test_a_build_that_is_in_the_cache_is_not_made_again(monkeypatch):
    monkeypatch.setattr(rdma_kernel, "hindrance", lambda: "")
    monkeypatch.setattr(rdma_kernel, "missing_packages", lambda _: [])
    said = []
    make(cached_kernel())
    assert build(said.append) == cached_kernel()
    assert "is there" in said[-1]


def test_a_failing_step_is_told_with_its_last_lines(tmp_path):
    with pytest.raises(NotReadyError, match=r"sh -c echo one.* failed with 3: one / two") as caught:
        rdma_kernel._run(["sh", "-c", "echo one; echo two; exit 3"], tmp_path, fix="mend it")
    assert caught.value.fix == "mend it"
    with pytest.raises(NotReadyError, match="does not start"):
        rdma_kernel._run(["/nowhere/at/all"], tmp_path)
