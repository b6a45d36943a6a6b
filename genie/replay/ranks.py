"""The launcher's hold on one rank: a forked process, or (for tests, on a memory transport) a thread."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from genie.errors import GenieError, NotReadyError
from genie.replay.agent import Agent, AgentPlan, run_forked_agent
from genie.replay.control import Channel

PATIENCE_S: Final = 5.0
"""A rank that pauses for this long in the middle of a message is given up."""

THREAD_END_S: Final = 5.0


class Rank(Protocol):
    """A running rank."""

    @property
    def rank(self) -> int:
        """Its number."""
        ...

    @property
    def channel(self) -> Channel:
        """Our end of its control channel."""
        ...

    def ended(self) -> str:
        """How it ended ("" while it lives)."""
        ...

    def end(self, grace_ms: int) -> None:
        """Wait so long for it to end by itself, then end it. The channel is closed."""
        ...


class Spawn(Protocol):
    """Starts a rank."""

    def __call__(self, plan: AgentPlan, others: Sequence[Rank]) -> Rank:
        """`others`: started before, whose channels the new rank must not hold on to."""
        ...


class ForkedRank:
    """A child process."""

    def __init__(self, rank: int, pid: int, channel: Channel) -> None:
        self.rank, self.pid, self.channel = rank, pid, channel
        self._status: int | None = None

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid})"

    def _collect(self, options: int) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status is not None

    def ended(self) -> str:
        """See Rank."""
        self._collect(os.WNOHANG)
        if self._status is None:
            return ""
        if self._status < 0:
            return f"was killed by {signal.Signals(-self._status).name}"
        return f"ended with exit code {self._status}"

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.ended().startswith("was killed")

    def wait_ms(self, timeout_ms: int) -> bool:
        """Wait for its end; whether it has ended."""
        if self._status is None:
            with _pidfd(self.pid) as fd:
                poll = select.poll()
                poll.register(fd, select.POLLIN)
                poll.poll(timeout_ms)
        return self._collect(os.WNOHANG)

    def end(self, grace_ms: int) -> None:
        """See Rank."""
        self.channel.close()
        if not self._collect(os.WNOHANG) and not (grace_ms and self.wait_ms(grace_ms)):
            os.kill(self.pid, signal.SIGKILL)  # not yet collected, so the number is still its own
            self._collect(0)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def fork(plan: AgentPlan, others: Sequence[Rank]) -> Rank:
    """Start a rank as a process of its own.

    Raises:
        NotReadyError: the system allows no more processes or files.
    """
    parent = os.getpid()
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise _no_more(plan.rank, error) from error
    try:
        pid = os.fork()
    except OSError as error:
        ours.close()
        theirs.close()
        raise _no_more(plan.rank, error) from error
    if pid == 0:
        _live(plan, Channel(theirs), parent, [ours, *(other.channel for other in others)])
    theirs.close()
    return ForkedRank(plan.rank, pid, Channel(ours, PATIENCE_S))


def _no_more(rank: int, error: OSError) -> NotReadyError:
    return NotReadyError(
        f"rank {rank} cannot be started: {error.strerror}.", fix="raise ulimit -n and -u, or use fewer ranks."
    )


def _live(plan: AgentPlan, channel: Channel, parent: int, foreign: Sequence[Channel | socket.socket]) -> None:
    """The child's life; never returns, whatever happens."""
    code = os.EX_SOFTWARE
    try:
        for one in foreign:
            one.close()
        code = run_forked_agent(plan, channel, parent)
    finally:
        os._exit(code)


class ThreadRank:
    """A thread of this process."""

    def __init__(self, plan: AgentPlan) -> None:
        ours, theirs = socket.socketpair()
        self.rank, self.channel = plan.rank, Channel(ours, PATIENCE_S)
        self._thread = threading.Thread(target=_serve, args=(plan, Channel(theirs)), daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"rank {self.rank} (a thread)"

    def ended(self) -> str:
        """See Rank."""
        return "" if self._thread.is_alive() else "ended"

    def end(self, grace_ms: int) -> None:
        """See Rank: a thread cannot be killed, it ends when it sees that its channel is closed."""
        self.channel.close()
        self._thread.join(max(THREAD_END_S, grace_ms / 1000))


def _serve(plan: AgentPlan, channel: Channel) -> None:
    with contextlib.suppress(GenieError):  # it has told the launcher
        Agent(plan, channel).serve()
    channel.close()


def thread(plan: AgentPlan, others: Sequence[Rank]) -> Rank:  # noqa: ARG001  (a Spawn; threads share all channels)
    """Start a rank as a thread."""
    return ThreadRank(plan)


def first_killed(ranks: Sequence[Rank], within_ms: int) -> ForkedRank | None:
    """A process among them that a signal ended, waiting for so long.

    A killed process closes its connections a little before it can be seen to have ended, so its peers may complain
    first.
    """
    poll, watched = select.poll(), {}
    processes = [rank for rank in ranks if isinstance(rank, ForkedRank)]
    with contextlib.ExitStack() as stack:
        for rank in processes:
            if not rank.ended():
                fd = stack.enter_context(_pidfd(rank.pid))
                watched[fd] = rank
                poll.register(fd, select.POLLIN)
        while True:
            killed = next((rank for rank in processes if rank.killed), None)
            if killed is not None or not watched:
                return killed
            ended = poll.poll(within_ms)
            if not ended:
                return None
            for fd, _ in ended:
                poll.unregister(fd)
                del watched[fd]
