"""What was compiled is used again, unless a file of the kernel changed: also one whose functions are only called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

from genie.simulate.kernel import jit, loop

CALLEE = "from toy.jit import jit\n\n@jit\ndef number(x):\n    return x + {}\n"
CALLER = (
    "from toy.callee import number\nfrom toy.jit import entry, is_kept\n\n"
    "@entry\ndef twice(x):\n    return 2 * number(x)\n\n"
    "if __name__ == '__main__':\n"
    "    kept = is_kept(twice)\n"
    "    print(twice(1), kept, sum(twice.stats.cache_hits.values()), twice._cache.cache_path)\n"
)


@pytest.fixture
def toy(tmp_path):
    """A kernel of two files, compiled and kept as the real one is."""
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").touch()
    shutil.copy(jit.__file__, folder / "jit.py")
    (folder / "callee.py").write_text(CALLEE.format(1))
    (folder / "caller.py").write_text(CALLER)
    return folder


def run(folder, **environment):
    """(result, kept before, cache hits, where)."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    command = [sys.executable, "-m", "toy.caller"]
    done = subprocess.run(
        command, cwd=folder.parent, env=bare | environment, capture_output=True, text=True, check=True
    )
    result, kept, hits, where = done.stdout.split(maxsplit=3)
    return int(result), kept == "True", int(hits), Path(where.strip())


def test_changed_callee_is_noticed(toy):
    first = run(toy)
    assert first[:3] == (4, False, 0)
    assert run(toy)[:3] == (4, True, 1)
    (toy / "callee.py").write_text(CALLEE.format(5))
    changed = run(toy)
    assert changed[:3] == (12, False, 0)
    assert changed[3] != first[3]


def test_users_folder_is_taken_else_the_packages(toy, tmp_path):
    chosen = tmp_path / "chosen"
    assert chosen in run(toy, NUMBA_CACHE_DIR=str(chosen))[3].parents
    assert run(toy, NUMBA_CACHE_DIR=str(chosen))[1:3] == (True, 1)
    no_folder = tmp_path / "file"
    no_folder.touch()
    result, kept, _, where = run(toy, NUMBA_CACHE_DIR=str(no_folder))
    assert (result, kept) == (4, False)
    assert toy / "__pycache__" in where.parents


def test_nowhere_to_keep(monkeypatch):
    monkeypatch.setattr(jit, "_writable", lambda _folder: False)
    assert jit.cache_folder() is None
    doubled = jit.entry(lambda x: 2 * x)
    assert doubled(4) == 8
    assert not jit.is_kept(doubled)


def test_settings_are_the_users_again(monkeypatch, tmp_path):
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", str(tmp_path))
    with jit._kept_in(tmp_path / "other"):
        assert str(tmp_path / "other") == jit.numba.config.CACHE_DIR
    assert str(tmp_path) == jit.numba.config.CACHE_DIR


def test_digest_covers_every_file_of_the_kernel(monkeypatch, tmp_path):
    names = {path.name for path in jit.HERE.glob("*.py")}
    assert {"layout.py", "matching.py", "network.py", "loop.py"} <= names
    copy = tmp_path / "kernel"
    shutil.copytree(jit.HERE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = jit.digest()
    monkeypatch.setattr(jit, "HERE", copy)
    assert jit.digest() == before
    for name in names:
        (copy / name).write_text((copy / name).read_text() + "\n")
        assert jit.digest() != before
        before = jit.digest()


def test_kernel_is_kept_under_its_digest():
    assert jit.digest() in str(loop.advance._cache.cache_path)
