"""Failed work completions as sentences."""

import pytest

from genie.replay.transports.verbs_errors import EXPLANATIONS, RETRY_EXCEEDED, explain, sentence


def test_every_status_of_the_interface_is_explained():
    assert sorted(EXPLANATIONS) == list(range(1, 24))  # enum ibv_wc_status but for IBV_WC_SUCCESS
    assert len({told.name for told in EXPLANATIONS.values()}) == 23


def test_statuses_agree_with_pyverbs_where_it_is():
    library = pytest.importorskip("genie.replay.transports.verbs_library")
    if library.find_pyverbs():
        pytest.skip("needs pyverbs: " + library.find_pyverbs())
    enums = vars(library._library().enums)
    for status, told in EXPLANATIONS.items():
        assert enums[f"IBV_WC_{told.name}"] == status


@pytest.mark.parametrize("status", [*EXPLANATIONS, 24, 99, -1])
def test_a_sentence_says_what_which_peer_and_the_usual_cause(status):
    what, fix = sentence(status, 5, "mlx5_0/1[3] 10.0.0.1 RoCE v2", vendor=129)
    assert what.startswith("rank 5 through mlx5_0/1[3] 10.0.0.1 RoCE v2: ")
    assert explain(status).name in what
    assert "vendor code 129" in what
    assert what.endswith(".")
    assert fix.startswith("the usual cause: ")


def test_a_peer_that_never_acknowledges_points_at_the_network():
    assert "drops UDP 4791" in sentence(RETRY_EXCEEDED, 1, "x")[1]
