import json

import numpy as np
import pytest
from click.testing import CliRunner

from genie.cli import cli
from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.errors import InputError
from genie.formats.runfile import RunWriter


def replayed(folder, factor=1.0, seed=1):
    finish = (np.random.default_rng(seed).normal(1e6, 3e3, 8) * factor).round().astype(int)
    run = RunWriter.create(folder, "replay", "job")
    ranks = Ranks.from_rows([(k, 0, time, 0) for k, time in enumerate(finish.tolist())])
    run.save_timeline(
        Timeline("hand", measured=True, ranks=ranks, operators=Operators.empty(), messages=Messages.empty())
    )
    run.finish("ok", {}, [{"name": "x", "ok": True, "hard": True, "value": "", "limit": "", "detail": ""}])
    return str(run.path)


def compare(*arguments):
    return CliRunner().invoke(cli, ["compare", *arguments])


def test_two_runs_in_words(tmp_path):
    done = compare(replayed(tmp_path), replayed(tmp_path, 1.05, seed=2))
    assert done.exit_code == 0
    assert "inputs and environment are the same" in done.output
    assert done.output.splitlines()[-1].startswith("Iteration time: worse, +4.88% (")


def test_several_runs_as_json(tmp_path):
    bases = [option for seed in (1, 2) for option in ("--base", replayed(tmp_path, seed=seed))]
    news = [option for seed in (3, 4) for option in ("--new", replayed(tmp_path, 0.9, seed=seed))]
    found = json.loads(compare(*bases, *news, "--json").output)
    assert found["verdict"] == "better"
    assert found["changes"][0]["change"] == pytest.approx(-0.1, abs=0.01)


def test_the_margin_is_the_users(tmp_path):
    runs = replayed(tmp_path), replayed(tmp_path, 1.05, seed=2)
    assert json.loads(compare(*runs, "--margin", "10%", "--json").output)["verdict"] == "no difference"
    for wrong in ("much", "200%"):
        assert compare(*runs, "--margin", wrong).exit_code == 2


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "c"], ["--base", "a"], ["a", "b", "--base", "c"]])
def test_sides_must_be_clear(arguments):
    done = compare(*arguments)
    assert done.exit_code == 2
    assert "BASE and NEW" in done.output


def test_what_is_no_run_is_refused(tmp_path):
    assert isinstance(compare(str(tmp_path), str(tmp_path)).exception, InputError)
