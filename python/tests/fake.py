"""Loaders whose servers are imitated: the batches of an epoch are its samples' numbers."""

import json
from unittest import mock

import numpy as np

import nwt
from nwt import _wire


class Transport:
    """What a loader asks, for an epoch of some samples in batches of 4, and what it was asked for."""

    def __init__(self, samples=10, bad=()):
        self.samples, self.bad = samples, set(bad)
        self.asked, self.open, self.closed, self.mapped = [], 0, False, None

    def describe(self, rank, world):
        self.place = rank, world
        batches = -(-self.samples // (4 * world))
        return {"samples": self.samples, "batches": batches, "batch": 4, "workers": 3, "about": {"classes": ["cat", "dog"]}}

    def asking(self, ahead):
        self.open += 1
        return Asking(self)

    def close(self):
        self.closed = True


class Asking:
    def __init__(self, transport):
        self.transport = transport

    def ask(self, ticket):
        one, asked = self.transport, json.loads(ticket)
        state, number, rank, world = {"epoch": asked["epoch"], "samples": asked["samples"]}, asked["batch"], asked["rank"], asked["world"]
        one.asked.append((state["epoch"], state["samples"], number))

        def take():
            if state["samples"] > one.samples:
                raise _wire.told(f"State.Samples: {state['samples']}: an epoch has {one.samples} samples [state-beyond]")
            return answer({"epoch": state["epoch"] + 1, "samples": 0} if 0 < state["samples"] == one.samples else state)

        def answer(state):
            step = 4 * world
            begin = state["samples"] + number * step
            whole = np.array_split(np.arange(begin, min(begin + step, one.samples)), world)[rank]
            bad = [{"index": int(i), "position": int(i), "error": "torn"} for i in whole if i in one.bad]
            index = np.array([i for i in whole if i not in one.bad], np.int64)
            after = min(begin + step, one.samples)
            arrays = {"image": np.zeros((len(index), 3, 2, 2), np.uint8), "label": index % 2, "index": index}
            return arrays, -(-(one.samples - after) // step), {"epoch": state["epoch"], "samples": after, "order": "o"}, bad

        return take

    def close(self):
        self.transport.open -= 1


def loader(samples=10, bad=(), **kwargs):
    """A loader, whose _transport is a fake."""
    with mock.patch.object(nwt.Loader, "_open", lambda self: Transport(samples, bad)):
        return nwt.Loader("localhost:1", **kwargs)


def indices(batches):
    return [batch["index"].tolist() for batch in batches]
