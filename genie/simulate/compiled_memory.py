"""The arrays of the compiled path, and how they grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from genie.simulate.kernel import layout

Integers = NDArray[np.int64]

_FIRST_WAITS: Final = 1024


def integers(values: Iterable[int] | NDArray[Any]) -> Integers:
    """An array of at least one."""
    array = np.array(values if isinstance(values, np.ndarray) else list(values), np.int64)
    return array if len(array) else np.zeros(1, np.int64)


def at_rest(rows: int, width: int) -> Integers:
    """Queues and links: idle (0), nobody first or last in line (-1)."""
    table = np.full((rows, width), -1, np.int64)
    table[:, 0] = 0
    return table


class Memory:
    """The kernel's arrays, and how they grow.

    Attributes:
        m, f: see genie.simulate.kernel.
    """

    def __init__(self, tables: dict[str, Integers]) -> None:
        self._width = {name: len(fields) for name, fields in layout.TABLES.items()} | dict.fromkeys(layout.PLAIN, 1)
        self._rows = dict.fromkeys(self._width, 0)
        self._spares: list[Integers] = [np.empty(0, np.int64)] * len(layout.POOLS)
        self.m = np.zeros(layout.REGISTERS, np.int64)
        self.f = np.zeros(2 * len(tables["size"]), np.float64)
        self._lay_out({name: len(table) for name, table in tables.items()} | {"wait": _FIRST_WAITS})
        for name, table in tables.items():
            self.table(name)[:] = table.reshape(-1, self._width[name])
        self.table("wait")[:, layout.WAIT_PAIR] = -1

    @property
    def registers(self) -> Integers:
        """The first part of `m`."""
        return self.m[: layout.REGISTERS]

    def table(self, name: str) -> Integers:
        """A table, a row each."""
        at = int(self.m[getattr(layout, f"AT_{name.upper()}")])
        return self.m[at : at + self._rows[name] * self._width[name]].reshape(-1, self._width[name])

    def _lay_out(self, rows: dict[str, int]) -> None:
        """Move everything into a larger `m`; tables not named keep their length."""
        old = {name: self.table(name) for name, count in self._rows.items() if count}
        self._rows |= rows
        pools = [self._rows[name] for name in layout.POOLS]
        size = layout.REGISTERS + sum(count * self._width[name] for name, count in self._rows.items()) + sum(pools)
        new = np.zeros(size, np.int64)
        new[: layout.REGISTERS] = self.registers
        self.m, at = new, layout.REGISTERS
        for name, count in self._rows.items():
            new[getattr(layout, f"AT_{name.upper()}")] = at
            if name in old:
                self.table(name)[: len(old[name])] = old[name]
            at += count * self._width[name]
        for pool, count in enumerate(pools):
            new[layout.AT_SPARES + pool] = at
            new[layout.SPARE_OF + pool] = len(self._spares[pool])
            new[at : at + len(self._spares[pool])] = self._spares[pool]
            at += count
        new[[layout.CAP_EVENT, layout.CAP_WAIT, layout.CAP_LOG]] = [self._rows[n] for n in ("event", "wait", "log")]

    def _free(self, pool: int) -> Integers:
        at = int(self.m[layout.AT_SPARES + pool])
        return self.m[at : at + int(self.m[layout.SPARE_OF + pool])].copy()

    def enlarge(self) -> None:
        """At least double everything of which less is left than one continuation may take."""
        from genie.simulate.kernel import loop  # noqa: PLC0415 - imports numba, which takes half a second

        registers = self.registers
        need = int(registers[layout.SPARE])
        rows: dict[str, int] = {}
        for pool, name in enumerate(layout.POOLS):
            self._spares[pool] = self._free(pool)
            if len(self._spares[pool]) < need:
                have = self._rows[name]
                rows[name] = max(2 * have, have + 2 * need)
                self._spares[pool] = np.concatenate([np.arange(rows[name] - 1, have - 1, -1), self._spares[pool]])
        streams = rows.get("stream", self._rows["stream"])
        rows["plan_queue"] = rows["plan_turn"] = streams * int(registers[layout.PHASES])
        rows["step_missing"] = max(1, streams * int(registers[layout.STEPS]))
        if int(registers[layout.EVENTS]) + 2 * need > self._rows["event"]:
            rows["event"] = 2 * self._rows["event"] + 4 * need
        if registers[layout.KEEP] and int(registers[layout.LOGGED]) + need > self._rows["log"]:
            rows["log"] = 2 * self._rows["log"] + 2 * need
        waits = old = self._rows["wait"]
        while 2 * (int(registers[layout.WAITS]) + need) > waits:
            waits *= 2
        if waits == old:
            self._lay_out(rows)
            return
        before = self.table("wait").ravel().copy()
        self._lay_out(rows | {"wait": waits})
        self.table("wait")[:, layout.WAIT_PAIR] = -1
        loop.rehash(self.m, self.f, before)
