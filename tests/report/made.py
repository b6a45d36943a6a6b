"""Small timelines and runs, made by hand or simulated."""

from genie.core.timeline import Messages, Operators, Ranks, Timeline
from genie.core.workload import CollectiveKind, NodeKind
from genie.formats.runfile import RunWriter, open_run

COMP, COLL, SEND = NodeKind.COMP, NodeKind.COLLECTIVE, NodeKind.SEND


def operator(rank, node, kind, issue, done, *, comm=-1, group="", size=0, iteration=0, late=0, name=None):
    name = name or f"node {node}"
    return (iteration, rank, node, kind, comm, group, name, size, issue, done, late)


def all_reduce(rank, issue, done, *, node=7, size=1000, group="", iteration=0):
    return operator(
        rank, node, COLL, issue, done, comm=CollectiveKind.ALL_REDUCE, group=group, size=size, iteration=iteration
    )


def message(src, dst, size, posted, delivered, *, caused=None, acknowledged=-1, iteration=0, index=0, node=7, tag=5):
    caused = posted if caused is None else caused
    return (iteration, src, dst, tag, size, index, 0, node, 0, 0, index, caused, posted, -1, delivered, acknowledged, 0)


def timeline(ranks=((0, 0, 100, 40), (0, 1, 120, 60)), operators=(), messages=(), *, measured=True):
    return Timeline(
        executor="by hand",
        measured=measured,
        ranks=Ranks.from_rows(list(ranks)),
        operators=Operators.from_rows(list(operators)),
        messages=Messages.from_rows(list(messages)),
    )


NETWORK = {
    "links": {
        "link": ["a>s", "s>b"],
        "class": ["host", "host"],
        "rate_bps": [8_000_000_000, 4_000_000_000],
        "delay_ns": [100, 200],
        "buffer_bytes": [9000, 9000],
    },
    "routes": {"src": [0, 0], "dst": [1, 1], "hop": [0, 1], "link": ["a>s", "s>b"]},
}


def saved(folder, made, kind="replay", name="job", status="ok", checks=(), results=None, network=NETWORK, parent=None):
    """A run directory of a timeline, opened."""
    run = parent.child(name, kind) if parent else RunWriter.create(folder, kind, name)
    if made is not None:
        run.save_timeline(made)
    for table, columns in (network or {}).items():
        run.save_table(table, columns)
    run.finish(status, {"iteration_ns": 120} if results is None else results, list(checks))
    return open_run(run.path)


FITTED = [
    {"name": "bandwidth", "value": 2e11, "unit": "bit/s", "stderr": 1e9, "low": 1.98e11, "high": 2.02e11, "samples": 9},
    {"name": "latency", "value": 500.0, "unit": "ns", "stderr": None, "low": 500.0, "high": 500.0, "samples": 0},
]


def check(name="bytes equal the schedule's", *, ok=True, hard=True, value="12 of 12", limit="equal", detail=""):
    return {"name": name, "ok": ok, "hard": hard, "value": value, "limit": limit, "detail": detail}


def round_row(number, predicted, measured, fitted=FITTED):
    error = (predicted - measured) / measured
    run = f"rounds/{number}-replay"
    return {
        "round": number,
        "predicted_ns": predicted,
        "measured_ns": measured,
        "error": error,
        "fitted": fitted,
        "run": run,
        "unidentified": [],
    }


def small(*, measured=True):
    """Two ranks that compute and reduce, twice."""
    operators, messages = [], []
    for k in range(2):
        for rank in (0, 1):
            operators.append(operator(rank, 1, COMP, 0, 40, iteration=k, name="forward"))
            operators.append(all_reduce(rank, 40, 95 + 5 * rank, iteration=k))
            messages += [
                message(rank, 1 - rank, 1000 * (1 + at), 41, 41 + 40 * (1 + at) + k, iteration=k, index=at, tag=5 + at)
                for at in (0, 1)
            ]
    ranks = [(k, rank, 100 + 20 * k, 60 + 20 * k) for k in range(2) for rank in (0, 1)]
    return timeline(ranks=ranks, operators=operators, messages=messages, measured=measured)


def saved_loop(folder, rounds=((90, 100), (99, 100)), *, tolerance=0.02, status="ok", stopped="enough", lose=()):
    """A loop of so many (predicted, measured) rounds; of the rounds in `lose` the replay failed."""
    loop = RunWriter.create(folder, "loop", "a loop")
    loop.describe(loop={"rounds": 3, "tolerance": tolerance, "gain": 0.001})
    rows = []
    for number, times in enumerate(rounds, 1):
        saved(None, small(measured=False), "simulate", f"{number}-simulate", network=None, parent=loop)
        good = number not in lose
        saved(
            None,
            small(),
            "replay",
            f"{number}-replay",
            "ok" if good else "failed",
            [check(ok=good)],
            None if good else {"error": "rank 1: killed"},
            parent=loop,
        )
        if good:
            rows.append(round_row(number, *times))
    errors = [f"round {number}: rank 1: killed" for number in lose]
    loop.save_rounds(rows)
    loop.finish(status, {"rounds": rows, "stopped": stopped, "errors": errors})
    return open_run(loop.path)
