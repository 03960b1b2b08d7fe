"""What tuning found."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Trial:
    """What was measured at one number of workers. Times are seconds per batch."""

    workers: int
    mean: float
    low: float  # low … high is the 95 % interval of mean
    high: float
    wait: float
    cpu: float  # the share of this rank's CPUs that was in use, 0 … 1
    memory: int  # bytes, without file pages; 0: not known


@dataclasses.dataclass(frozen=True)
class Result:
    """What tuning found. Printed, it is the table."""

    workers: int  # the choice: the fewest workers within alpha of the fastest
    fastest: int
    trials: list[Trial]  # ascending
    alpha: float  # seconds that the choice may take longer than the fastest, over so many iterations:
    iterations: int
    repeatability: float  # the share of runs that would choose the same, 0 … 1; 0: not known
    floor: float  # seconds that an iteration would take if nothing waited for data; 0: not known
    cached: bool  # an earlier run has measured it
    reason: str
    table: str = dataclasses.field(repr=False)
    warnings: list[str] = dataclasses.field(default_factory=list)  # reasons to trust the choice less
    advice: list[str] = dataclasses.field(default_factory=list)  # what to change

    def __str__(self) -> str:
        return self.table


def told(about: dict[str, Any]) -> Result | None:
    """The result in what a server tells of itself."""
    if not (figures := about.get("figures")):
        return None
    return _of(Result, {**figures, "trials": [_of(Trial, one) for one in figures["trials"]], "table": about["result"]})


def _of(kind: type[T], figures: dict[str, Any]) -> T:
    """An object of Go's JSON, where durations are nanoseconds."""
    values = {name.removesuffix("_ns"): value / 1e9 if name.endswith("_ns") else value for name, value in figures.items()}
    return kind(**{name: value for name, value in values.items() if name in kind.__annotations__})
