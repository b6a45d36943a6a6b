import os
import signal
import threading

import pytest

from genie.replay.interrupt import InterruptedRunError, Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_until_it_is_looked_at(number):
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), number)
        with pytest.raises(InterruptedRunError, match=number.name):
            interrupts.check()


def test_the_second_one_acts_as_before():
    with Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_leave_signals_alone():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter():
        with Interrupts() as interrupts:
            interrupts.check()
            seen.append(signal.getsignal(signal.SIGINT))

    worker = threading.Thread(target=enter)
    worker.start()
    worker.join()
    assert seen == [before]
