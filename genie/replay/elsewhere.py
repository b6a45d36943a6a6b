"""What a rank on another host is told besides the experiment, as plain JSON, and its plan made of that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from genie.core.schedule import Schedule
from genie.core.shaping import Shaping
from genie.replay.agent import AgentPlan
from genie.replay.launcher import LaunchOptions
from genie.replay.local import Place, ReplayOptions, plan_of


def told(options: ReplayOptions, places: Sequence[Place], secret: bytes) -> dict[str, Any]:
    """For all ranks."""
    fields = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name != "launch"
    }
    return {
        "options": fields | {"options": dict(options.options)},
        "places": [_told_place(place) for place in places],
        "secret": secret.hex(),
    }


def told_plan(schedule: Schedule, rank: int, more: dict[str, Any], enter: Callable[[str], None]) -> AgentPlan:
    """One rank's; `enter` moves its process into the network namespace of a file."""
    options = ReplayOptions(launch=LaunchOptions(), **more["options"])
    place = _place_of(more["places"][rank], enter)
    return plan_of(schedule, rank, place, options, bytes.fromhex(more["secret"]))


def _told_place(place: Place) -> dict[str, Any]:
    return {
        "address": place.address,
        "slot": place.slot,
        "namespace": place.namespace,
        "delays_ns": list(place.delays_ns.items()),
        "rates_bps": list(place.rates_bps.items()),
        "shaping": dataclasses.astuple(place.shaping),
    }


def _place_of(about: dict[str, Any], enter: Callable[[str], None]) -> Place:
    """It is at its host already, but for a namespace there."""
    return Place(
        about["address"],
        partial(enter, about["namespace"]) if about["namespace"] else lambda: None,
        dict(about["delays_ns"]),
        dict(about["rates_bps"]),
        Shaping(*about["shaping"]),
        about["slot"],
    )
