"""Samples that the program's own Python makes."""

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np
import program

import nwt


class Birds:
    def __init__(self, n=100):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return np.full((2, 3), i, np.float32), i % 7, random.random(), np.random.random()


class Labelled(Birds):
    process = -1

    def __getitem__(self, i):
        return np.full((2, 3), i), i, self.process


class Named(Birds):
    def __getitem__(self, i):
        return {"x": np.int16(i), "name": f"bird {i}", "box": np.ones((i % 5, 4))}


class Empty(Birds):
    def __getitem__(self, i):
        return {}


class Slow(Birds):
    def __getitem__(self, i):
        if i == 13:
            raise ValueError("no such bird")
        if i == 29:
            time.sleep(1e6)
        return i


def own(dataset, **options):
    return nwt.Dataset(dataset, program=program.program(), **options)


def lengths_of(samples):
    return [len(sample["box"]) for sample in samples]


def children():
    found = []
    for at in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"_children" in at.read_bytes():
                found.append(at)
    return found


class TestOwn(unittest.TestCase):
    def test_samples_are_the_same_at_any_number_of_workers_and_after_a_resume(self):
        all_of = {}
        for workers in 1, 3:
            with own(Birds(), batch_size=16, shuffle=True, seed=5, num_workers=workers) as train:
                batches = iter(train)
                for _ in range(2):
                    next(batches)
                state = train.state_dict()
                all_of[workers] = [{name: array.copy() for name, array in batch.items()} for batch in batches]
        with own(Birds(), batch_size=16, shuffle=True, seed=5) as train:
            train.load_state_dict(state)
            all_of["resumed"] = list(train)
        for other in 3, "resumed":
            self.assertEqual(len(all_of[other]), 5)
            for one, two in zip(all_of[1], all_of[other]):
                self.assertEqual(list(one), ["0", "1", "2", "3", "index"])
                for name in one:
                    np.testing.assert_array_equal(one[name], two[name])
        self.assertTrue((all_of[1][0]["0"][:, 1, 2] == all_of[1][0]["index"]).all())

    def test_what_is_no_array_comes_as_a_list_and_ragged_arrays_have_lengths(self):
        with own(Named(10), batch_size=10, ragged={"box": 4}) as loader:
            for batch in loader:
                self.assertEqual(batch["name"], [f"bird {i}" for i in range(10)])
                self.assertEqual(batch["box.len0"].tolist(), [i % 5 for i in range(10)])
                self.assertEqual(batch["box"].shape, (10, 4, 4))
        with own(Named(10), batch_size=5, collate_fn=lengths_of) as loader:
            self.assertEqual(list(loader), [[0, 1, 2, 3, 4]] * 2)
        with own(Empty(3), batch_size=3) as loader:
            self.assertEqual([batch["index"].tolist() for batch in loader], [[0, 1, 2]])

    def test_a_sample_that_is_bad_or_hangs_is_left_out_alone(self):
        with self.assertLogs("nwt", "WARNING") as logged, own(Slow(), batch_size=50, errors=2, timeout=0.5, num_workers=2) as loader:
            self.assertEqual(sum(len(batch["index"]) for batch in loader), 98)
        self.assertIn("no such bird", "\n".join(logged.output))

    def test_weights_and_lengths_decide_the_order(self):
        with own(Birds(), batch_size=10, weights=[0] * 50 + [1] * 50, draws=30) as loader:
            self.assertEqual(len(loader), 3)
            self.assertTrue(all((batch["index"] >= 50).all() for batch in loader))
        with own(Birds(), batch_size=10, lengths=[1 + i % 10 for i in range(100)]) as loader:
            self.assertLess(max(np.ptp(batch["index"] % 10) for batch in loader), 3)
        with self.assertRaisesRegex(ValueError, "weights: must be a number per sample: there are 100"):
            own(Birds(), weights=[1, 2])

    def test_mistakes_say_what_to_write(self):
        for error, of, options in (
            ("must have __len__ and __getitem__", iter([]), {}),
            (r"field 'box' .* without elements: say ragged=", Named(), {}),
            ("Dataset has no argument 'shufle': did you mean 'shuffle'", Birds(), {"shufle": True}),
            ("batch_tokens for lengths", Birds(), {"batch_tokens": 5}),
        ):
            with self.assertRaisesRegex(Exception, error):
                own(of, **options)

    @unittest.skipUnless(sys.platform == "linux", "looks for processes in /proc")
    def test_a_script_without_a_guard_runs_and_leaves_no_process(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train.py"), "w") as file:
                file.write(
                    "import nwt\nclass Birds:\n    def __len__(self): return 20\n    def __getitem__(self, i): return i\n"
                    f"print('above')\ntrain = nwt.Dataset(Birds(), batch_size=10, program={program.program()!r})\nprint([batch['0'].tolist() for batch in train])\n"
                )
            said = subprocess.run(
                [sys.executable, file.name],
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertEqual(said.stdout.count("above"), 2)  # the second time in the template
        self.assertIn("[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]", said.stdout)
        for _ in range(100):
            if not children():
                break
            time.sleep(0.1)
        self.assertEqual(children(), [])


if __name__ == "__main__":
    unittest.main()
