"""Frozen values that every stage speaks in, checked when they are made. No I/O, no clocks."""
