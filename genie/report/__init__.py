"""Timelines and runs -> what people read: tables with units in the column names, plots, one HTML page."""
