"""Standard errors that do not believe in independent messages.

Messages of one pair of ranks share a path, those of one iteration share a moment, and those of one size share what
the model gets wrong about that size. Under each of these groupings the solution is worked out again without one
cluster at a time; for every parameter the widest interval counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.fit.problem import TUNING
from genie.fit.samples import Floats

MIN_CLUSTERS: Final = 4
SINGULAR: Final = 1e7


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Of one parameter: standard error, factor of a 95 % interval, and the grouping it comes from."""

    stderr: float
    t: float
    grouping: str


def uncertainties(jacobian: Floats, residuals: Floats, groupings: Mapping[str, NDArray[Any]]) -> list[Uncertainty]:
    """One for each column of the Jacobian, each from the grouping that gives it the widest interval.

    Args:
        jacobian: messages x parameters, derivative of the residuals.
        residuals: at the solution, scaled to a spread of about one.
        groupings: name -> cluster label of every message; those with fewer than four clusters count only if no other
            is left, and then the one with the most.
    """
    from scipy.stats import t as student  # noqa: PLC0415 - a second to import, needed only here

    found = []
    for name, labels in _usable(groupings).items():
        variance, clusters = clustered(jacobian, residuals, labels)
        factor = float(student.ppf(0.975, max(clusters - 1, 1)))
        found.append([Uncertainty(float(error), factor, name) for error in np.sqrt(np.diag(variance))])
    return [max(candidates, key=lambda u: u.stderr * u.t) for candidates in zip(*found, strict=True)]


def _usable(groupings: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    clusters = {name: len(np.unique(labels)) for name, labels in groupings.items()}
    enough = {name: labels for name, labels in groupings.items() if clusters[name] >= MIN_CLUSTERS}
    if enough:
        return enough
    most = max(groupings, key=lambda name: clusters[name])
    if clusters[most] > 1:
        return {most: groupings[most]}
    return {"message": np.arange(len(groupings[most]))}


def clustered(jacobian: Floats, residuals: Floats, labels: NDArray[Any]) -> tuple[Floats, int]:
    """Covariance (parameters x parameters) by leaving out one cluster at a time, and the number of clusters.

    One Newton step stands for each refit. It is known to be more honest with few and unequal clusters than the
    sandwich formula (MacKinnon, Nielsen and Webb, Journal of Applied Econometrics 38, 2023: "CV3"); that formula
    (Liang and Zeger, Biometrika 73, 1986) takes over where the data without one cluster would not do.
    """
    gradients = jacobian * np.clip(residuals, -TUNING, TUNING)[:, None]
    curved = jacobian * (np.abs(residuals) <= TUNING)[:, None]
    length = np.sqrt(np.einsum("ij,ij->j", jacobian, curved))
    gradients, curved, scaled = gradients / length, curved / length, jacobian / length
    whole = scaled.T @ curved
    order = np.argsort(labels, kind="stable")
    _, first = np.unique(labels[order], return_index=True)
    clusters = np.split(order, first[1:])
    scores = np.array([gradients[rows].sum(axis=0) for rows in clusters])
    steps = _left_out(whole, [scaled[rows].T @ curved[rows] for rows in clusters], scores)
    if steps is None:
        steps = np.linalg.solve(whole, (scores - scores.mean(axis=0)).T).T * np.sqrt(_few(len(clusters)))
    else:
        steps = (steps - steps.mean(axis=0)) / np.sqrt(_few(len(clusters)))
    return (steps.T @ steps) / np.outer(length, length), len(clusters)


def _few(clusters: int) -> float:
    return clusters / max(clusters - 1, 1)


def _left_out(whole: Floats, parts: list[Floats], scores: Floats) -> Floats | None:
    """How far the solution moves without each cluster; None if one of them is all that tells some parameter."""
    steps = []
    for part, score in zip(parts, scores, strict=True):
        rest = whole - part
        if np.linalg.cond(rest) > SINGULAR:
            return None
        steps.append(np.linalg.solve(rest, score))
    return np.array(steps)
