import os

from genie.replay.priority import die_with, take_precedence


def in_child(do):
    """What `do` writes when called in a child process."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(do()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def test_precedence_is_what_the_system_says_it_is():
    def ask():
        return f"{take_precedence()} {os.sched_getscheduler(0)} {os.getsid(0) == os.getpid()}"

    said, scheduler, own_session = in_child(ask).split()
    assert own_session == "True"
    assert said in {"real-time", "raised", "ordinary"}
    assert (said == "real-time") == (int(scheduler) == os.SCHED_RR)


def test_real_time_may_be_unwanted():
    said, scheduler = in_child(lambda: f"{take_precedence(real_time=False)} {os.sched_getscheduler(0)}").split()
    assert said == "ordinary"
    assert int(scheduler) != os.SCHED_RR


def test_without_the_right_to_real_time_it_says_so():
    def ask():
        if os.geteuid() == 0:
            os.setuid(65_534)
        return take_precedence(), os.sched_getscheduler(0)

    assert in_child(ask) == str(("ordinary", os.SCHED_OTHER))


def test_a_launcher_that_is_gone_is_noticed():
    parent = os.getpid()
    assert in_child(lambda: (die_with(parent), die_with(parent + 1))) == "(True, False)"
