from genie.testbed import doctor, rdma_kernel


def test_every_lack_has_its_fix():
    checks = doctor.examine()
    assert {"namespaces", "name clash", "ASTRA-sim", "MPI", "RDMA devices", "rdma-lab"} <= {
        check.name for check in checks
    }
    assert all(check.fix for check in checks if check.status == "bad")
    assert all(check.status in {"ok", "lack", "bad"} for check in checks)


def test_a_clash_with_pyats_is_seen(monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda name: name == "pyats")
    (clash,) = [check for check in doctor.examine() if check.name == "name clash"]
    assert clash.status == "bad"
    assert "pyats" in clash.found


def test_a_look_that_fails_is_told_not_raised(monkeypatch):
    def broken():
        raise OSError("no /proc here")

    monkeypatch.setattr(doctor, "_congestion_control", broken)
    (check,) = [check for check in doctor.examine() if "no /proc here" in check.found]
    assert check.status == "lack"


def test_astra_sim_may_be_named_by_its_folder(tmp_path, monkeypatch):
    def status():
        return next(check.status for check in doctor.examine() if check.name == "ASTRA-sim")

    monkeypatch.setenv("GENIE_ASTRA_SIM", str(tmp_path))
    assert status() == "bad"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "AstraSim_Analytical_Congestion_Aware").touch(0o755)
    assert status() == "ok"


def test_a_lab_without_a_kernel_is_told_with_its_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GENIE_RDMA_KERNEL", raising=False)
    monkeypatch.setattr(rdma_kernel, "hindrance", lambda: "")
    monkeypatch.setattr(rdma_kernel, "missing_packages", lambda _: [])
    check = doctor._rdma_lab()
    assert (check.status, check.fix) == ("lack", "make rdma-lab")
    monkeypatch.setattr(rdma_kernel, "missing_packages", lambda _: ["tcpdump"])
    assert doctor._rdma_lab().fix == "sudo apt install tcpdump"
    monkeypatch.setattr(rdma_kernel, "hindrance", lambda: "this is a toaster")
    assert "toaster" in doctor._rdma_lab().found
