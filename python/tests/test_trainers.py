"""Trainers take nwt.torch.DataLoader as it is: four epochs, stopped in mid-epoch and resumed on other ranks, each sample once in each."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import unittest

import program


def run(trainer, folder, number, ranks, *more, data=None):
    """Trains on some ranks, each in a process, as torchrun starts them. Returns what they say."""
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
        args = [sys.executable, script, trainer, str(folder), data or str(program.pictures(each=17)), program.program(), str(number), *more]
        processes.append(subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    all_said = ""
    for process in processes:
        said, _ = process.communicate(timeout=300)
        if process.returncode:
            raise AssertionError(said[-5000:])
        all_said += said
    return all_said


@unittest.skipUnless(importlib.util.find_spec("torch") and "NWT_TEST" not in os.environ, "PyTorch isn't installed, or pytest runs them")
class Trainers(unittest.TestCase):
    def trains(self, trainer, data=None, ways=((1, 2), (2, 1))):
        for before, after in ways:
            with self.subTest(f"{before} → {after}"):
                folder = program.folder()
                run(trainer, folder, 0, before, data=data)
                self.assertNotIn("WARNING", run(trainer, folder, 1, after, data=data))
                seen, validated = [], []
                for number, ranks in ((0, before), (1, after)):
                    parts = [json.loads((folder / f"seen-{number}-{rank}.json").read_text()) for rank in range(ranks)]
                    seen += [[i for batch in part[0] for i in batch] for part in parts]
                    validated.append(sorted(i for part in parts for batch in part[1] for i in batch))
                first, rest = seen[:before], seen[before:]
                self.assertEqual(sum(map(len, first)), 34 + 3 * 4 * before)
                self.assertTrue(all(rest))
                self.assertEqual(sorted(i for part in seen for i in part), sorted(list(range(34)) * 4), "each sample in each of four epochs")
                self.assertEqual(validated, [list(range(34)), sorted(list(range(34)) * 3)], "after each epoch")

    def test_a_loop(self):
        self.trains("plain")

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_lightning(self):
        self.trains("lightning")

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_lightning_that_counts_once_is_told(self):
        folder = program.folder()
        run("lightning", folder, 0, 2)
        self.assertIn("reload_dataloaders_every_n_epochs=1", run("lightning", folder, 1, 1, "stale"))

    @unittest.skipUnless(importlib.util.find_spec("lightning"), "Lightning isn't installed")
    def test_datasets_of_pytorchs_users(self):
        for data, way in (("Boxes", (1, 2)), ("Text", (2, 1)), ("Segmentation", (1, 2)), ("Pairs", (2, 1))):
            with self.subTest(data):
                self.trains("lightning", data, [way])

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
