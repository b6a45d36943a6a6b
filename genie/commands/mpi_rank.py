"""What mpirun starts (`python -m genie.commands.mpi_rank BUNDLE SOCKET`): the relay on the first host, else a rank."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genie.errors import GenieError, InternalError

if TYPE_CHECKING:
    from genie.replay.mpi_world import WorldChannel


def live(rank: int, bundle: bytes, channel: WorldChannel) -> int:
    """A rank's life; its exit code. What goes wrong before it is an agent is told to the launcher all the same."""
    from genie.formats.bundle import unpack  # noqa: PLC0415
    from genie.loading import schedule_of  # noqa: PLC0415
    from genie.replay.agent import Agent  # noqa: PLC0415
    from genie.replay.clock import sharpen_timers  # noqa: PLC0415
    from genie.replay.elsewhere import told_plan  # noqa: PLC0415
    from genie.replay.priority import take_precedence  # noqa: PLC0415
    from genie.testbed.namespaces import enter_file  # noqa: PLC0415

    try:
        with tempfile.TemporaryDirectory(prefix="genie-rank-") as folder:
            experiment, more = unpack(bundle, Path(folder))
            plan = told_plan(schedule_of(experiment), rank, more, enter_file)
        priority = take_precedence(real_time=plan.real_time)
    except GenieError as error:
        _tell(channel, error)
        return 0
    except Exception as error:  # noqa: BLE001 - whoever dies here would wait in MPI's end for all others, and say nothing
        _tell(channel, InternalError(f"{type(error).__name__}: {error}.", where=f"rank {rank}"))
        return 0
    gc.freeze()
    gc.disable()
    sharpen_timers()
    try:
        Agent(plan, channel, priority).serve()
    except GenieError:
        return 0  # it has told the launcher, which ends the job; a code would have mpirun end it before that is heard
    return 0


def _tell(channel: WorldChannel, error: GenieError) -> None:
    nothing: dict[str, list[Any]] = {"receives": [], "sends": [], "operators": []}
    told = {"op": "failed", "kind": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix}
    channel.send(told | {"outstanding": nothing})


def main(arguments: list[str]) -> int:
    """The life of one process of the job."""
    from genie.replay.mpi_world import run  # noqa: PLC0415

    bundle, path = map(Path, arguments)
    return run(bundle.read_bytes, path, live)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
