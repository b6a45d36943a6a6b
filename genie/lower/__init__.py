"""Workload + algorithms -> Schedule: collectives become chunks, phases and point-to-point messages."""

from genie.lower.lowering import lower

__all__ = ["lower"]
