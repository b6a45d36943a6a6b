"""Genie: test the network of an AI cluster without its GPUs.

In a notebook: ``import genie; run = genie.open_run("runs/...")``; docs/notebooks.md shows what there is.

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

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from genie.report.comparison import Comparison
    from genie.report.notebook import Results

__version__ = "0.1.0"

__all__ = ["__version__", "compare", "open_kineto", "open_nccl_tests", "open_run"]


def open_run(path: Path | str) -> Results:
    """Open a run directory: tables, figures and numbers of what `genie` simulated or replayed.

    Raises:
        genie.errors.InputError: no run directory, or a damaged one.
    """
    from genie.report.notebook import open_results  # noqa: PLC0415 - `import genie` costs nothing

    return open_results(path)


def open_kineto(*paths: Path | str) -> Results:
    """Open the Kineto traces of a GPU run, one file a rank: its kernels as operators, NCCL's as collectives.

    Raises:
        genie.errors.InputError: no Kineto trace, or one without GPU kernels.
    """
    from genie.formats.kineto import read_kineto  # noqa: PLC0415 - see above
    from genie.report.notebook import Results  # noqa: PLC0415 - see above

    return Results(read_kineto(paths), "GPU run")


def open_nccl_tests(path: Path | str, *, collective: str | None = None, members: int | None = None) -> pd.DataFrame:
    """Open an nccl-tests log or JSON file: collective, members, total_bytes, time_ns, algbw_gb_per_s, busbw_gb_per_s.

    Args:
        path: the file.
        collective: such as "all_reduce", where the file does not say.
        members: how many ranks took part, where the file does not say.

    Raises:
        genie.errors.InputError: no output of nccl-tests, or one that does not say what was tested.
    """
    import pandas as pd  # noqa: PLC0415 - see above

    from genie.core.workload import CollectiveKind  # noqa: PLC0415 - see above
    from genie.formats.nccl_tests import read_nccl_tests  # noqa: PLC0415 - see above

    kind = CollectiveKind[collective.upper()] if collective is not None else None
    return pd.DataFrame(read_nccl_tests(path, collective=kind, members=members))


def compare(
    base: Path | str | Results | Sequence[Path | str | Results],
    new: Path | str | Results | Sequence[Path | str | Results],
    *,
    margin: float = 0.01,
    force: bool = False,
) -> Comparison:
    """Compare two runs, or two lists of runs measured in turn: what got better or worse, and how sure that is.

    Args:
        base: what it is compared with.
        new: what is compared; as many runs as base, in the same order, for a paired comparison.
        margin: relative changes up to this are of no interest.
        force: compare runs of different workloads or with failed self-checks too.

    Raises:
        genie.errors.InputError: runs that are too unlike, unless forced.
    """
    from genie.report.comparison import compare as compare_runs  # noqa: PLC0415 - see above

    return compare_runs(base, new, margin=margin, force=force)
