from pathlib import Path

import pytest

from genie.errors import InputError
from genie.formats.experiment import experiment_of, load_experiment

MINIMAL = """
name: small
workload: { traces: traces/step }
system: system.json
testbed: ../testbeds/two.yml
"""


def written(folder, text):
    path = folder / "experiment.yml"
    path.write_text(text)
    return path


def test_four_keys_are_enough_and_predictions_start_from_the_testbeds_own_figures(tmp_path):
    found = load_experiment(written(tmp_path, MINIMAL))
    assert (found.model, found.network) == ("fabric", None)
    assert found.traces == tmp_path / "traces/step"
    assert found.testbed == tmp_path / "../testbeds/two.yml"


def test_a_network_file_means_astra_sims_aware_model_unless_another_is_named(tmp_path):
    with_file = load_experiment(written(tmp_path, MINIMAL + "network: { file: net.yml }\n"))
    named = load_experiment(written(tmp_path, MINIMAL + "network: { file: net.yml, model: unaware }\n"))
    assert (with_file.model, with_file.network) == ("aware", tmp_path / "net.yml")
    assert named.model == "unaware"


def test_an_aware_model_without_a_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="the aware model needs a network file"):
        load_experiment(written(tmp_path, MINIMAL + "network: { model: aware }\n"))


def test_everything_wrong_is_named_at_once(tmp_path):
    text = MINIMAL.replace("system: system.json", "sistem: system.json") + "loop: 3\nqueues_per_dim: 0\n"
    with pytest.raises(InputError) as caught:
        load_experiment(written(tmp_path, text))
    for part in ("system is missing", "sistem is no key here", "loop must be a mapping", "queues_per_dim: input"):
        assert part in caught.value.what


@pytest.mark.parametrize("text", ["[]", "7", "''", "null"])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="must be a mapping"):
        load_experiment(written(tmp_path, text))


@pytest.mark.parametrize("factor", [".nan", ".inf", "-1", "0"])
def test_a_factor_on_bytes_that_is_no_positive_number_is_refused(tmp_path, factor):
    text = MINIMAL.replace("traces/step }", f"traces/step, scale_bytes: {factor} }}")
    with pytest.raises(InputError, match="scale_bytes"):
        load_experiment(written(tmp_path, text))


def test_options_replace_what_the_file_says(tmp_path):
    path = written(tmp_path, MINIMAL)
    found = experiment_of(path, {"traces": Path("elsewhere/step"), "system": None, "transport": "roce"})
    assert found.traces == Path("elsewhere/step")
    assert found.system == tmp_path / "system.json"
    assert found.replay.transport == "roce"


def test_options_alone_say_what_is_still_needed():
    with pytest.raises(InputError) as caught:
        experiment_of(None, {"traces": Path("step")})
    assert "--system, --testbed" in caught.value.fix
