"""The fabrics that a replay runs on: emulated in network namespaces, and what this machine can do."""
