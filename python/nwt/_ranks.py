"""The rank of this process among those that train together, by the rules of nwt in Go (internal/launch)."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping

logger = logging.getLogger("nwt")

Environ = Mapping[str, str]
LARGEST = 2**20  # ranks


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The variables that a launcher sets."""

    name: str
    rank: str
    world: str
    local_rank: str = ""
    local_world: str = ""  # a number or, if node is given, a list with one number for each node
    node: str = ""
    started: str = ""  # if it is set, this launcher has started this process …
    unless: Callable[[Environ, int], bool] = lambda environ, pid: False  # … unless this says otherwise


def _task_of_slurm(environ: Environ, pid: int) -> bool:
    """Whether srun itself has started this process: then mpirun's variables come from outside."""
    return bool(environ.get("SLURM_STEP_NUM_TASKS")) and environ.get("SLURM_TASK_PID") == str(pid)


def _pmi_of_slurm(environ: Environ, pid: int) -> bool:
    """Whether srun --mpi=pmi2 has set PMI_RANK; MPICH's own launcher tells the local rank too."""
    if _task_of_slurm(environ, pid) or environ.get("MPI_LOCALRANKID"):
        return _task_of_slurm(environ, pid)
    return all(environ.get(a, "") == environ.get(b, "") for a, b in (("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS")))


def _not_of_lightning(environ: Environ, pid: int) -> bool:
    return not environ.get("WORLD_SIZE") or bool(environ.get("LOCAL_WORLD_SIZE")) or environ.get("NODE_RANK", "") not in ("", "0")


# From the innermost launcher to the outermost: torchrun is started by mpirun or srun, mpirun within a job of Slurm.
LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(
        "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", unless=_task_of_slurm,
    ),
    Launcher("MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", unless=_pmi_of_slurm),
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS"),
    Launcher("Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE"),
    Launcher("Lightning", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_RANK", "WORLD_SIZE", unless=_not_of_lightning),
)  # fmt: skip


def find(environ: Environ, pid: int) -> tuple[int, int, str]:
    """The rank, the number of ranks, and who has set them: "" if nobody has. Raises ValueError if they are set wrongly."""
    for one in LAUNCHERS:
        if environ.get(one.started or one.rank) and not one.unless(environ, pid):
            try:
                rank, world = _place(one, environ)
            except ValueError as error:
                raise ValueError(f"rank and world_size from {one.name}: {error} (or give rank and world_size)") from None
            return rank, world, f"{one.rank} and {one.world} of {one.name}"
    for one in LAUNCHERS:
        if environ.get(one.world, "") not in ("", "1"):
            want = "RANK or, in an Indexed Job, JOB_COMPLETION_INDEX" if one.world == "WORLD_SIZE" else one.rank
            raise ValueError(f'{one.world} is "{environ[one.world]:.60}", but no rank is set: want {want} (or give rank and world_size)')
    return 0, 1, ""


def _place(one: Launcher, environ: Environ) -> tuple[int, int]:
    world = _number(environ, one.world, 1, LARGEST)
    rank = _number(environ, one.rank, 0, world - 1)
    if environ.get(one.local_rank) and environ.get(one.local_world):
        local_world = _tasks(one, environ, world) if one.node else _number(environ, one.local_world, 1, world)
        local_rank = _number(environ, one.local_rank, 0, local_world - 1)
        if local_rank > rank or local_world - local_rank > world - rank:
            raise ValueError(f"rank {rank} of {world} can't be {local_rank} of {local_world} on its host")
        if one.name == "Slurm":
            _own_step(environ, local_world)
    elif one.name == "Slurm":
        _own_step(environ, None)
    return rank, world


def _number(environ: Environ, name: str, low: int, high: int) -> int:
    text = environ.get(name)
    if not text:
        raise ValueError(f"{name} is not set; want a number from {low} to {high}")
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
        raise ValueError(f'{name} is "{text:.60}"; want a number from {low} to {high}')
    return int(text)


def _tasks(one: Launcher, environ: Environ, world: int) -> int:
    """How many tasks this node has, of Slurm's list: "4(x2),3" is 4, 4 and 3."""
    node, text = _number(environ, one.node, 0, world - 1), environ[one.local_world]
    groups = [re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,9})\))?", group) for group in text.split(",")]
    counts = [(int(group[1]), int(group[2] or 1)) for group in groups if group]
    if len(counts) == len(groups) and all(tasks and nodes for tasks, nodes in counts):
        before = 0
        for tasks, nodes in counts:
            if node < (before := before + nodes) and tasks <= world:
                return tasks
            if node < before:
                break
    raise ValueError(f'{one.local_world} is "{text:.200}"; want a number from 1 to {world} for node {node}, as in "4(x2),3"')


def _own_step(environ: Environ, local_world: int | None) -> None:
    """Raises an error if the variables are of another job's step: sbatch inherits those that are set where it is called."""
    inherited = (
        "the job was submitted from inside another job's step and has inherited its variables "
        "(or srun ran with --preserve-env): unset the SLURM_STEP_ variables before sbatch"
    )
    for step, job in (("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")):
        if environ.get(job) and environ[job] != environ.get(step, ""):
            raise ValueError(f"{step} is {environ.get(step, ''):.200}, but {job} is {environ[job]:.200}: {inherited}")
    ids = environ.get("SLURM_GTIDS")
    if ids and environ.get("SLURM_LOCALID") and (n := ids.count(",") + 1) != (1 if local_world is None else local_world):
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE gives this node {local_world} tasks, but SLURM_GTIDS lists {n}: {inherited}")


def place(rank: int | None, world_size: int | None, environ: Environ = os.environ) -> tuple[int, int]:
    """The rank and the number of ranks: those given, or those that a launcher has set."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        if rank >= world_size:
            raise ValueError(f"rank={rank}: must be below world_size={world_size}")
        return rank, world_size
    rank, world_size, of = find(environ, os.getpid())
    if of:
        logger.info("rank %d of %d: %s", rank, world_size, of)
    return rank, world_size


def sharing(environ: Environ = os.environ) -> int:
    """How many ranks share the CPUs of this process."""
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if (text := environ.get(name, "")).isdigit():
            return _bound(int(text))
    if "SLURM_STEP_NUM_TASKS" in environ and "SLURM_GTIDS" in environ:
        return _bound(environ["SLURM_GTIDS"].count(",") + 1)  # lists the ranks of this host
    started = "RANK" not in environ and environ.get("LOCAL_RANK") and environ.get("WORLD_SIZE", "")  # by Lightning, on one host
    return _bound(int(started)) if started and started.isdigit() else 1


def _bound(ranks: int) -> int:
    """Of so many ranks on this host, how many share this one's CPUs: fewer if the launcher has bound it to some of its parent's."""
    try:
        own, parents = (len(os.sched_getaffinity(pid)) for pid in (0, os.getppid()))
    except (AttributeError, OSError):  # not on Linux
        return max(1, ranks)
    return max(1, -(-ranks * own // parents) if own < parents else ranks)
