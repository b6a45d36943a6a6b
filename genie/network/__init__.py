"""When a message is delivered, under each kind of network model; used by the simulator and by the fit alike."""
