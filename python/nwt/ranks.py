"""The rank of this process among those that train together."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

logger = logging.getLogger("nwt")

# From the innermost launcher to the outermost: torchrun is started by mpirun or srun, mpirun within a job of Slurm.
LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE"),
    ("Lightning", "LOCAL_RANK", "WORLD_SIZE"),
)


def sharing(environ: Mapping[str, str] = os.environ) -> int:
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


def place(rank: int | None, world_size: int | None, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank and the number of ranks: those given, or those that a launcher has set."""
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        if rank >= world_size:
            raise ValueError(f"rank={rank}: must be below world_size={world_size}")
        return rank, world_size
    for launcher, of_rank, of_world in LAUNCHERS:
        texts = environ.get(of_rank), environ.get(of_world)
        if not all(texts) or launcher == "Lightning" and environ.get("NODE_RANK", "0") != "0":
            continue
        try:
            rank, world_size = (int(text or "") for text in texts)
        except ValueError:
            rank, world_size = -1, 0
        if not 0 <= rank < world_size:
            raise ValueError(f"{of_rank}={texts[0]} and {of_world}={texts[1]} in the environment are no rank of so many: give rank and world_size")
        logger.info("rank %d of %d: %s and %s of %s", rank, world_size, of_rank, of_world, launcher)
        return rank, world_size
    if environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"WORLD_SIZE={environ['WORLD_SIZE']} in the environment, without a rank: give rank and world_size")
    return 0, 1
