"""Ways to move a message for real. All obey `base.Transport` and pass one conformance suite."""
