"""A loader whose batches servers load."""

import collections
import contextlib
import json
import os



class Loader(contextlib.AbstractContextManager):
    """The batches of one rank, loaded by servers.

    addresses are host:port or unix:PATH; of a name with several hosts all are asked. All servers
    must serve the same batches; those that die are asked again, and may come back. shared:PATH is
    the shared memory of a server on this host, alone. tls is True, or the file of the servers' root
    certificates. prefetch is how many batches are asked for ahead of
    the one in use, and patience for how many seconds without an answer it is asked again.

    An array is the caller's own. A field that is ragged has its lengths in NAME.len0, NAME.len1 …
    """

    def __init__(self, addresses, *, rank=0, world=1, token=None, tls=None, prefetch=4, patience=60):
        if isinstance(addresses, str) or not addresses:
            raise ValueError(f"addresses: {addresses!r}: must be a list of at least one")
        if prefetch < 1:
            raise ValueError(f"prefetch: {prefetch}: must be at least 1")
        self._pid = os.getpid()
        self._prefetch = prefetch
        self._rank = {"rank": rank, "world": world}
        self._epoch = 0  # of the next iteration
        self._resume = None  # state at which it begins instead
        self._left, self._after = 1, '{"epoch": 0, "samples": 0}'  # batches after the last one, and the state
        if addresses[0].startswith("shared:"):
            from .shared import Shared

            self._servers = Shared(addresses[0][len("shared:") :], token=token, patience=patience, ended=self._ended)
        else:
            from .servers import Servers

            self._servers = Servers(addresses, token=token, tls=tls, patience=patience, ended=self._ended)
        self._about = self._servers.describe(rank, world)

    def __len__(self):
        """The batches of an epoch."""
        return self._about["batches"]

    def set_epoch(self, epoch):
        """Says which epoch comes next. Without it each iteration is the epoch after the one before."""
        self._epoch = epoch
        if self._resume and self._resume["epoch"] != epoch:
            self._resume = None

    def epoch(self, epoch):
        """The batches of an epoch, or the rest of it after load_state_dict of a state of this epoch."""
        self.set_epoch(epoch)
        return iter(self)

    def state_dict(self):
        """The state after the last batch that was given out: some integers, for JSON."""
        after = json.loads(self._after)
        return after if self._left else {"epoch": after["epoch"] + 1, "samples": 0}

    def load_state_dict(self, state):
        """Has the next iteration go on after a state, which may be of another number of ranks."""
        self._resume = {key: state[key] for key in ("epoch", "samples", "order") if key in state}
        self._left, self._after = 1, json.dumps(self._resume)
        self._epoch = self._resume["epoch"]

    def __iter__(self):
        self._check()
        start = self._resume or {"epoch": self._epoch, "samples": 0}
        self._resume, self._epoch = None, start["epoch"] + 1
        return self._iterate(start)

    def _iterate(self, start):
        left = 1 if start["samples"] else len(self)  # of a rest the first answer tells how many
        asked, number = collections.deque(), 0
        asking = self._servers.asking(self._rank["rank"], self._rank["world"], self._prefetch)
        try:
            while left or asked:
                while left and len(asked) < self._prefetch:
                    asked.append(asking.ask(start, number))
                    number, left = number + 1, left - 1
                batch, self._left, self._after, _ = asked.popleft()()
                left = self._left - len(asked)
                yield batch
                del batch
                self._check()
        finally:
            asking.close()

    def _check(self):
        if os.getpid() != self._pid:
            raise RuntimeError(f"this loader is of process {self._pid}: gRPC doesn't survive a fork, so make one in each process")

    def _ended(self):
        """Why no server will answer any more."""

    def close(self):
        """Ends the connections."""
        if os.getpid() == self._pid:
            self._servers.close()

    def __exit__(self, *_):
        self.close()
