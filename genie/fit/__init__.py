"""Measured messages -> a NetworkModel whose predictions match them, with standard errors."""

from genie.fit.estimate import equivalent_dimensions, fit
from genie.fit.result import FitResult, Fitted, Outlier

__all__ = ["FitResult", "Fitted", "Outlier", "equivalent_dimensions", "fit"]
