"""Standard errors against what is known of the mean: clusters, few of them, and clusters of one."""

import numpy as np
import pytest

from genie.fit.covariance import clustered, uncertainties

SMALL = 1e-3
"""Residuals so small that the loss is quadratic, where the answers are known."""


def mean_problem(values):
    """Estimating a mean: the Jacobian is ones, residuals are what is left."""
    values = SMALL * np.asarray(values, float)
    return np.ones((len(values), 1)), values.mean() - values


def test_clusters_of_one_are_the_jackknife_of_the_mean():
    values = np.random.default_rng(1).standard_normal(50)
    jacobian, residuals = mean_problem(values)
    variance, clusters = clustered(jacobian, residuals, np.arange(50))
    assert clusters == 50
    assert np.sqrt(variance[0, 0]) == pytest.approx(SMALL * values.std(ddof=1) / np.sqrt(50), rel=1e-3)


def test_copies_of_a_message_in_one_cluster_add_no_knowledge():
    values = np.random.default_rng(2).standard_normal(12)
    once, _ = clustered(*mean_problem(values), np.arange(12))
    often, _ = clustered(*mean_problem(np.repeat(values, 30)), np.repeat(np.arange(12), 30))
    assert often[0, 0] == pytest.approx(once[0, 0], rel=1e-3)


def test_a_parameter_that_only_one_cluster_tells_still_gets_a_number():
    """Without cluster 0 nothing would tell the second parameter: the sandwich formula steps in."""
    jacobian = np.column_stack([np.ones(40), np.repeat([1.0, 0, 0, 0], 10)])
    residuals = SMALL * np.random.default_rng(3).standard_normal(40)
    variance, _ = clustered(jacobian, residuals, np.repeat(np.arange(4), 10))
    assert np.isfinite(variance).all()


def test_the_wider_grouping_counts():
    rng = np.random.default_rng(4)
    values = np.repeat(rng.standard_normal(10), 20) + 0.01 * rng.standard_normal(200)
    jacobian, residuals = mean_problem(values)
    groupings = {"alike": np.repeat(np.arange(10), 20), "mixed": np.tile(np.arange(20), 10)}
    (found,) = uncertainties(jacobian, residuals, groupings)
    assert found.grouping == "alike"
    assert found.t == pytest.approx(2.262, abs=1e-3)


def test_few_clusters_are_used_only_if_there_is_nothing_better():
    jacobian, residuals = mean_problem(np.random.default_rng(5).standard_normal(40))
    two, five = np.repeat([0, 1], 20), np.repeat(np.arange(5), 8)
    assert uncertainties(jacobian, residuals, {"two": two, "five": five})[0].grouping == "five"
    assert uncertainties(jacobian, residuals, {"two": two})[0].t == pytest.approx(12.706, abs=1e-3)
    assert uncertainties(jacobian, residuals, {"one": np.zeros(40)})[0].grouping == "message"
