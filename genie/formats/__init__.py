"""Bytes or text <-> core values. Reads and writes files, decides nothing."""
