"""Measured messages -> a NetworkModel whose predictions match them, with standard errors."""

from genie.fit.estimate import fit
from genie.fit.result import FitResult

__all__ = ["FitResult", "fit"]
