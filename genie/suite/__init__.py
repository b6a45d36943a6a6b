"""Validation suites: cases, the user's thresholds, verdicts, JUnit. What runs them is genie/validate.py."""
