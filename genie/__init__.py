"""Genie: test the network of an AI cluster without its GPUs.

The map of the package, in the order in which its parts may import one another:

``units``, ``errors``
    every conversion; the tree of errors with their exit codes.
``core``
    frozen values: Workload, Schedule, Timeline, NetworkModel, Testbed, Experiment.
``network``
    what a message's delivery time is, under each kind of network model.
``formats``, ``lower``, ``engine``, ``fit``
    files <-> values; Workload -> Schedule; what a rank does next; measured times -> NetworkModel.
``simulate``, ``replay``, ``testbed``, ``report``, ``suite``
    the executors, the fabrics they run on, and what people read.
``loop``, ``cli``
    the only places that see more than one stage.
"""

__version__ = "0.1.0"
