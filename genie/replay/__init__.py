"""The executor that measures: the engine with a real clock and a transport, one process a rank."""
