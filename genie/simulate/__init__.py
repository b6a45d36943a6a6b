"""Executors that predict: a Schedule and a NetworkModel become a Timeline."""
