"""Trainers take nwt.torch.DataLoader as it is: stopped in mid-epoch on 1 rank, resumed on 2, each sample once."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import unittest

import program


def run(trainer, folder, ranks, *more):
    """Trains on some ranks, each in a process, as torchrun starts them."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    script = os.path.join(os.path.dirname(__file__), "trainers.py")
    processes = []
    for rank in range(ranks):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        if ranks > 1:
            names = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "NODE_RANK": 0,
                "GROUP_RANK": 0,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "nwt",
            }
            env.update({name: str(value) for name, value in names.items()})
        args = [sys.executable, script, trainer, str(folder), str(program.pictures(each=17)), program.program(), *more]
        processes.append(subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in processes:
        said, _ = process.communicate(timeout=300)
        if process.returncode:
            raise AssertionError(said[-5000:])


@unittest.skipUnless(importlib.util.find_spec("torch") and "NWT_TEST" not in os.environ, "PyTorch isn't installed, or pytest runs them")
class Trainers(unittest.TestCase):
    def trains(self, trainer, *more):
        folder = program.folder()
        for ranks in (1, 2):
            run(trainer, folder, ranks, *more)
        parts = [json.loads(file.read_text()) for file in sorted(folder.glob("seen-*.json"))]
        self.assertEqual(len(parts), 3)
        self.assertEqual(len(parts[0]), 12)
        self.assertTrue(parts[1] and parts[2])
        self.assertEqual(sorted(i for part in parts for i in part), list(range(34)))

    def test_a_loop(self):
        self.trains("plain")

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_lightning(self):
        self.trains("lightning", "callback")

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_lightning_that_counts_another_number_of_ranks_batches(self):
        self.trains("lightning")

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_fabric(self):
        self.trains("fabric")

    @unittest.skipUnless(importlib.util.find_spec("accelerate"), "Accelerate isn't installed")
    def test_accelerate(self):
        self.trains("accelerate")

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers isn't installed")
    def test_transformers(self):
        self.trains("transformers")


if __name__ == "__main__":
    unittest.main()
