"""The command line: the commands in the order of the work, and the border at which every error becomes a sentence.

Each command parses, makes one library call, prints; heavy imports happen inside the commands. Tables and results go to
standard output, progress and errors to standard error. Exit codes: genie/errors.py.
"""

from __future__ import annotations

import errno
import sys
from typing import NoReturn

import click

from genie import __version__
from genie.commands.calibrate import fit_command, loop_command
from genie.commands.compare import compare
from genie.commands.executors import plan, replay
from genie.commands.packets import pcap
from genie.commands.results import export, report
from genie.commands.simulations import simulate
from genie.commands.testbeds import doctor, testbed
from genie.commands.traces import trace
from genie.commands.validate import validate
from genie.errors import GenieError, NotReadyError

INTERRUPTED = 130


class _Commands(click.Group):
    """Commands in the order of the work, not of the alphabet."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="genie")
def cli() -> None:
    """Test the network of an AI cluster without its GPUs.

    Turns a workload's execution trace into the messages that its collectives send, lets CPU hosts send them across a
    real or emulated fabric, and fits ASTRA-sim's network model to what was measured.
    """


for _command in (
    trace,
    plan,
    simulate,
    replay,
    fit_command,
    loop_command,
    testbed,
    report,
    export,
    compare,
    validate,
    pcap,
    doctor,
):
    cli.add_command(_command)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; never lets a traceback reach the user."""
    try:
        code = cli.main(args=arguments, prog_name="genie", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except GenieError as error:
        click.echo(f"genie: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        click.echo("genie: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            _confess(error)
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"genie: {where}{error.strerror}.", err=True)
        sys.exit(NotReadyError.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug of ours, told in one sentence
        _confess(error)


def _confess(error: Exception) -> NoReturn:
    """Keep the traceback in a file and say where it is."""
    import tempfile  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    with tempfile.NamedTemporaryFile("w", prefix="genie-bug-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    click.echo(f"genie: a bug of ours: {type(error).__name__}: {error} (details in {file.name})", err=True)
    sys.exit(70)
