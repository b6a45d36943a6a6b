"""The closed loop: simulate, replay, fit the network model to what was measured, and again, until they agree."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from genie.core.netmodel import Dimension, DimensionModel, Estimate, FabricModel, NetworkModel, Topology
from genie.core.timeline import Status, Timeline
from genie.errors import InputError, InternalError, RunError
from genie.fit import FitResult, equivalent_dimensions, fit
from genie.formats.astra import write_network
from genie.formats.runfile import RunWriter
from genie.hosts import Lab
from genie.loading import Loaded
from genie.mpi import LOCALLY, Launcher, launched
from genie.replay.launcher import Progress
from genie.replay.local import Replayed
from genie.stages import Predictor, first_model, run_replay, run_simulation, save_inputs


class Observer(Protocol):
    """Who is told how the loop goes on."""

    def stage(self, text: str) -> None:
        """A new stage begins."""
        ...

    def progress(self, progress: Progress) -> None:
        """A replay moved on."""
        ...

    def round(self, row: Round) -> None:
        """A round is over."""
        ...


@dataclass(frozen=True, slots=True)
class Round:
    """One round: prediction with the model so far, measurement, and the model fitted to it.

    `error` is (predicted - measured) / measured; `fitted` are the parameters *after* this round's fit.
    """

    round: int
    predicted_ns: int
    measured_ns: int
    error: float
    fitted: list[dict[str, Any]]
    run: str
    unidentified: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "round": self.round,
            "predicted_ns": self.predicted_ns,
            "measured_ns": self.measured_ns,
            "error": self.error,
            "fitted": self.fitted,
            "run": self.run,
            "unidentified": self.unidentified,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a loop found: the rounds, why it stopped, the calibrated model, and what it wrote."""

    rounds: list[Round]
    stopped: str
    fitted: FitResult | None
    run: Path
    network_file: Path | None
    errors: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rounds": [row.as_dict() | {"run": str(self.run / row.run)} for row in self.rounds],
            "stopped": self.stopped,
            "run": str(self.run),
            "network_file": str(self.network_file) if self.network_file else None,
            "errors": self.errors,
        }


def loop(
    loaded: Loaded, root: Path, observer: Observer, lab_kind: str | None = None, launcher: Launcher = LOCALLY
) -> Outcome:
    """Run an experiment's loop into a new run directory under `root`.

    A replay that fails costs its round, not the earlier ones: the loop goes on with the next round.

    Raises:
        RunError: not a single round succeeded.
        NotReadyError: the testbed cannot be brought up.
    """
    run = RunWriter.create(root, "loop", loaded.experiment.name)
    save_inputs(run, loaded.files())
    run.describe(loop=asdict(loaded.experiment.loop))
    with Lab(loaded.testbed, lab_kind) as lab:
        return _Loop(loaded, run, observer, lab, launcher).go()


class _Loop:
    def __init__(self, loaded: Loaded, run: RunWriter, observer: Observer, lab: Lab, launcher: Launcher) -> None:
        self.loaded, self.run, self.observer, self.lab, self.launcher = loaded, run, observer, lab, launcher
        self.hosting = lab.hosting(len(loaded.schedule.ranks), loaded.experiment.replay)
        self.model: NetworkModel = first_model(loaded, self.hosting.routes)
        self.measured: list[Timeline] = []
        self.rounds: list[Round] = []
        self.errors: list[str] = []
        self.fitted: FitResult | None = None

    def go(self) -> Outcome:
        stopped = f"the limit of {self.loaded.experiment.loop.rounds} rounds was reached"
        try:
            for number in range(1, self.loaded.experiment.loop.rounds + 1):
                self._round(number)
                if reason := self._reason_to_stop():
                    stopped = reason
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
            self.errors.append("interrupted; the rounds before are kept")
        return self._finish(stopped)

    def _replay(self, run: RunWriter) -> Replayed:
        loaded, rule = self.loaded, self.loaded.experiment.replay
        with launched(loaded, self.lab, self.hosting, rule, self.launcher) as elsewhere:
            return run_replay(
                loaded.schedule, loaded.testbed, self.hosting, rule, run, self.observer.progress, elsewhere=elsewhere
            )

    def _round(self, number: int) -> None:
        observer, loaded = self.observer, self.loaded
        observer.stage(f"round {number}: simulate")
        simulated = self.run.child(f"{number}-simulate", "simulate")
        using = Predictor(loaded.experiment.simulator, loaded.experiment.astra_sim, observer.stage)
        predicted_ns = run_simulation(loaded.schedule, self.model, simulated, using).iteration_ns
        observer.stage(f"round {number}: replay")
        replayed = self.run.child(f"{number}-replay", "replay")
        result = self._replay(replayed)
        if result.error is not None:
            self.errors.append(f"round {number}: {result.error}")
            observer.stage(f"round {number}: the replay failed: {result.error}")
            if result.timeline.status is Status.PARTIAL:
                raise KeyboardInterrupt
            return
        observer.stage(f"round {number}: fit")
        self.measured.append(result.timeline)
        self.fitted = fit(self.model, self.measured)
        self.model = self.fitted.model
        self._record(number, predicted_ns, result.timeline.iteration_ns, replayed.path)

    def _record(self, number: int, predicted_ns: int, measured_ns: int, path: Path) -> None:
        fitted = self.fitted
        row = Round(
            round=number,
            predicted_ns=predicted_ns,
            measured_ns=measured_ns,
            error=(predicted_ns - measured_ns) / measured_ns,
            fitted=fitted.parameters() if fitted else [],
            run=str(path.relative_to(self.run.path)),
            unidentified=list(fitted.unidentified) if fitted else [],
        )
        self.rounds.append(row)
        rows = [r.as_dict() for r in self.rounds]
        self.run.save_rounds(rows)
        self.run.finish("running", {"rounds": rows, "errors": self.errors})
        self.observer.round(row)

    def _reason_to_stop(self) -> str | None:
        rule, rounds = self.loaded.experiment.loop, self.rounds
        if rounds and abs(rounds[-1].error) <= rule.tolerance:
            return f"prediction and measurement agree within {rule.tolerance:.1%}"
        if len(rounds) > 1 and abs(rounds[-2].error) - abs(rounds[-1].error) < rule.gain:
            return f"the error no longer shrinks by {rule.gain:.1%} a round"
        return None

    def _finish(self, stopped: str) -> Outcome:
        network_file = self._write_network()
        results = {"rounds": [r.as_dict() for r in self.rounds], "stopped": stopped, "errors": self.errors}
        status = "ok" if self.rounds and stopped != "interrupted" else "failed"
        self.run.finish(status, results)
        if not self.rounds:
            raise RunError(
                f"no round succeeded: {'; '.join(self.errors)}",
                where=str(self.run.path),
                fix="see the rounds' run.json.",
            )
        return Outcome(self.rounds, stopped, self.fitted, self.run.path, network_file, self.errors)

    def _shape(self, fabric: FabricModel) -> DimensionModel:
        """What ASTRA-sim's file is to look like: as the one given, else one switch with the fabric's slowest link."""
        if self.loaded.network is not None:
            return self.loaded.network
        slowest_bps = min(link.capacity_bps.value for link in fabric.links)
        switch = Dimension(Topology.SWITCH, fabric.ranks, Estimate(slowest_bps), Estimate(0.0))
        return DimensionModel((switch,), aware=True)

    def _write_network(self) -> Path | None:
        """The calibrated ASTRA-sim network file; for a fabric model, the dimensions that describe it best."""
        if self.fitted is None:
            return None
        model = self.fitted.model
        if not isinstance(model, DimensionModel):
            try:
                model = equivalent_dimensions(self._shape(model), self.measured).model
            except InputError as error:
                self.errors.append(f"no ASTRA-sim network file: {error}")
                return None
        if not isinstance(model, DimensionModel):
            raise InternalError("a fit changed the kind of the model.")
        path = self.run.path / "network.yml"
        about = f"Calibrated by Genie from {self.fitted.messages} measured messages: {self.loaded.experiment.name}"
        write_network(path, model, about)
        return path
