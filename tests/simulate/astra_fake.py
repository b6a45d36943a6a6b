"""A program that passes for ASTRA-sim, for what the real one does only on bad days."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
OUTPUTS = Path(__file__).with_name("astra_outputs")

_BODY = """#!{python}
# CongestionUnawareNetworkApi logging-configuration
import os, shutil, signal, subprocess, sys, time
sys.path.insert(0, {root!r})
{code}
"""

REPLAY = """
from pathlib import Path
recorded = Path({folder!r})
for name, stream in (("stdout.txt", sys.stdout), ("stderr.txt", sys.stderr)):
    if (recorded / name).is_file():
        stream.write((recorded / name).read_text())
        stream.flush()
if (recorded / "ticks.log").is_file():
    shutil.copyfile(recorded / "ticks.log", "ticks.log")
code = int((recorded / "exit_code").read_text())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    time.sleep(10)
sys.exit(code)
"""


WORKING = """
from genie.loading import load_astra
from genie.simulate.builtin import simulate
given = dict(word[2:].split("=", 1) for word in sys.argv[1:])
schedule, model, _, _ = load_astra(
    workload=given["workload-configuration"], system=given["system-configuration"],
    network=given["network-configuration"], memory=given["remote-memory-configuration"],
    comm_groups=given.get("comm-group-configuration"), model={model!r}, injection_scale=1.0, extended=False,
    num_queues_per_dim=int(given["num-queues-per-dim"]), rendezvous="rendezvous-protocol" in given, profile="astra")
timeline = simulate(schedule, model)
for rank, finish, exposed in zip(timeline.ranks.rank, timeline.ranks.finish_ns, timeline.ranks.exposed_ns):
    print(f"[info] sys[{{rank}}] finished, {{finish}} cycles, exposed communication {{exposed}} cycles.")
operators = timeline.operators
with open("ticks.log", "w") as ticks:
    for at in range(len(operators)):
        who = f"node->id={{operators.node_id[at]}}, node->name=x, node->type={{operators.kind[at]}}"
        for event, when in (("issue", operators.issue_ns[at]), ("callback", operators.done_ns[at])):
            ticks.write(f"[now] [D] <workload>: {{event}},sys->id={{operators.rank[at]}}, tick={{when}}, {{who}}\\n")
"""


def fake(folder, code):
    """An executable of that Python code, which holds the marks of the congestion-unaware front end."""
    path = folder / "fake-astra-sim"
    path.write_text(_BODY.format(python=sys.executable, root=ROOT, code=code))
    path.chmod(0o755)
    return path


def replaying(folder, case):
    """An executable that does what the real one did in a recorded case."""
    return fake(folder, REPLAY.format(folder=str(OUTPUTS / case)))


def working(folder, model="unaware"):
    """An executable that reads ASTRA-sim's files, simulates them as the builtin simulator does, and talks like it."""
    path = fake(folder, WORKING.format(model=model))
    mark = "CongestionAwareNetworkApi" if model == "aware" else "CongestionUnawareNetworkApi"
    path.write_text(path.read_text().replace("CongestionUnawareNetworkApi", mark))
    return path
