"""What tuning found."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was measured at one number of workers. Times are seconds per batch.

    mean: the mean time of a batch.
    low, high: the 95 % interval of mean.
    p99: the 99th percentile.
    wait: the part of mean in which the loop waited for the batch.
    cpu: the share of this rank's CPUs that was in use, 0 … 1.
    memory: bytes, without file pages; 0 if it isn't known.
    """

    workers: int
    mean: float
    low: float
    high: float
    p99: float
    wait: float
    cpu: float
    memory: int


@dataclasses.dataclass(frozen=True)
class RuledOut:
    """A number of workers that may not be chosen.

    code: "memory" if it needs too much memory, "cpus" if it is faster only by taking CPUs from other
        programs.
    reason: the code in words, with figures.
    """

    workers: int
    code: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Result:
    """What tuning found. Printed, it is the table.

    workers: the choice. It is the lowest number of workers whose time is at most alpha above the shortest,
        or the default, one per CPU, if the measurements don't tell whether that is as good.
    fastest: the fastest number of workers that may be chosen.
    trials: one for each number of workers that was measured.
    alpha: the difference, in seconds over `iterations` batches, that is too small to matter.
    iterations: how many batches alpha is for.
    repeatability: the share of repeated tunings that would choose the same number, 0 … 1; 0 if it isn't known.
    floor: how many seconds a batch would take if nothing waited for data; 0 if it isn't known.
    ruled_out: the numbers of workers that may not be chosen, and why.
    cached: whether the result comes from an earlier run.
    reason: why this is the choice.
    table: what print shows.
    warnings: reasons to trust the choice less.
    advice: what to change.
    """

    workers: int
    fastest: int
    trials: list[Trial]
    alpha: float
    iterations: int
    repeatability: float
    floor: float
    cached: bool
    reason: str
    table: str = dataclasses.field(repr=False)
    ruled_out: list[RuledOut] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    advice: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return self.table


def told(about: dict[str, Any]) -> Result | None:
    """The result in what a server tells of itself."""
    if not (figures := about.get("figures")):
        return None
    trials = [_of(Trial, one) for one in figures["trials"]]
    out = [_of(RuledOut, one) for one in figures.get("ruled_out", [])]
    said = {name: [_in_python(one) for one in figures.get(name) or []] for name in ("warnings", "advice")}
    return _of(Result, {**figures, **said, "trials": trials, "ruled_out": out, "table": _in_python(about["result"])})


# What Go's advice names, and what it is here.
WORDS = {
    "WithStep": "step_time",
    ", and WithMaxWorkers allows more": "",
    " (WithTuningTime)": "",
    " (Scratch)": "",
    ": Cached in memory, Precompute in a file": ", into files of arrays",
    ", or Cached,": ", or in memory,",
    "a lock inside Load": "a lock in your code",
}


def _in_python(text: str) -> str:
    for go, here in WORDS.items():
        text = text.replace(go, here)
    return text


def _of(kind: type[T], figures: dict[str, Any]) -> T:
    """An object of Go's JSON, where durations are nanoseconds."""
    values = {name.removesuffix("_ns"): value / 1e9 if name.endswith("_ns") else value for name, value in figures.items()}
    return kind(**{name: value for name, value in values.items() if name in kind.__annotations__})
