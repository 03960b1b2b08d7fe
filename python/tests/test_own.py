"""Samples that the program's own Python makes."""

import asyncio
import collections
import contextlib
import importlib.util
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import fake
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


class Numbers(Birds):
    def __getitem__(self, i):
        return i


class Labelled(Birds):
    process = -1

    def __getitem__(self, i):
        return np.full((2, 3), i), i, self.process


class Unreliable(Birds):
    """Some samples are bad, some fail the first time, and one may hang."""

    def __init__(self, n, folder, hangs):
        self.n, self.folder, self.hangs = n, folder, hangs

    def bad(self):
        return {i for i in range(self.n) if i % 37 == 5 or i == self.hangs}

    def __getitem__(self, i):
        if i == self.hangs:
            time.sleep(1e6)
        if i % 37 == 5:
            raise ValueError("no such bird")
        if i % 23 == 3:
            with contextlib.suppress(FileExistsError), open(f"{self.folder}/{i}", "x"):
                raise ConnectionError("gone for a while")
        return i


class Titled(Birds):
    def __getitem__(self, i):
        return {"x": i, "title": f"title {i}"}


class Named(Birds):
    def __getitem__(self, i):
        return {"x": np.int16(i), "name": f"bird {i}", "box": np.ones((i % 5, 4))}


class Sentences(Birds):
    def __getitem__(self, i):
        return f"from {i}", f"to {i}"


class Opened(Birds):
    def __init__(self):
        self.lock = threading.Lock()


class Spectra(Birds):
    def __getitem__(self, i):
        return np.ones(3, complex)


class Twice(Birds):
    def __getitem__(self, i):
        return {"a": {"b": i}, "a.b": -i}


class Odd(Birds):
    """The seventh sample is another one."""

    def __init__(self, odd):
        super().__init__()
        self.odd = odd

    def __getitem__(self, i):
        if i != 7:
            return {"x": i, "y": i}
        return BELOW if self.odd == "BELOW" else self.odd  # noqa: F821


class Slow(Birds):
    def __getitem__(self, i):
        if i in (0, 13):
            raise ValueError("no such bird")
        if i == 29:
            time.sleep(1e6)
        return i


def evens_first(epoch):
    numbers = [*range(0, 100, 2), *range(1, 100, 2)]
    return numbers[epoch:] + numbers[:epoch]


def backwards(epoch):
    return range(99, -1, -1)


def own(dataset, **options):
    return nwt.DataLoader(dataset, program=program.program(), **options)


def titles_of(samples):
    return {"title": [sample["title"] for sample in samples]}


def lengths_of(samples):
    return [len(sample["box"]) for sample in samples]


os.environ["NWT_TESTS"] = MARK = str(os.getpid())  # by which processes that make samples are known, whoever has started them


def children(of=None):
    """The processes of these tests that make samples; of a loader, its own, and its nwt-serve."""
    found, parents = [], {of._program.process.pid} if of else set()
    for at in sorted(pathlib.Path("/proc").glob("[0-9]*"), key=lambda at: int(at.name)):
        with contextlib.suppress(OSError):
            said, parent = (at / "cmdline").read_bytes(), int((at / "stat").read_text().rpartition(")")[2].split()[1])
            if b"_children" in said and f"NWT_TESTS={MARK}".encode() in (at / "environ").read_bytes().split(b"\0") and (not of or parent in parents):
                found.append(int(at.name))
                parents.add(found[-1])
    return sorted(parents) if of else found


def no_more_children():
    for _ in range(100):
        if not children():
            break
        time.sleep(0.1)
    return children() == []


class TestOwn(unittest.TestCase):
    def test_samples_are_the_same_at_any_number_of_workers_and_after_a_resume(self):
        all_of = {}
        for workers in 1, 3:
            with own(Birds(), batch_size=16, shuffle=True, seed=5, num_workers=workers) as train:
                batches = iter(train)
                for _ in range(2):
                    next(batches)
                state = train.state_dict()
                all_of[workers] = [[array.copy() for array in batch] for batch in batches]
        with own(Birds(), batch_size=16, shuffle=True, seed=5) as train:
            train.load_state_dict(state)
            all_of["resumed"] = list(train)
        for other in 3, "resumed":
            self.assertEqual(len(all_of[other]), 5)
            for one, two in zip(all_of[1], all_of[other]):
                self.assertEqual(len(one), 4)
                for array, same in zip(one, two, strict=True):
                    np.testing.assert_array_equal(array, same)
        images, labels, _, _ = all_of[1][0]
        np.testing.assert_array_equal(images[:, 1, 2] % 7, labels)

    def test_what_is_no_array_comes_as_a_list_and_ragged_arrays_have_lengths(self):
        with own(Named(10), batch_size=10, ragged={"box": 4}) as loader:
            for batch in loader:
                self.assertEqual(batch["name"], [f"bird {i}" for i in range(10)])
                self.assertEqual(batch["box.len0"].tolist(), [i % 5 for i in range(10)])
                self.assertEqual(batch["box"].shape, (10, 4, 4))
        with own(Named(10), batch_size=5, collate_fn=lengths_of) as loader:
            self.assertEqual(list(loader), [[0, 1, 2, 3, 4]] * 2)
        with own(Sentences(2), batch_size=2) as loader:
            self.assertEqual(list(loader), [[["from 0", "from 1"], ["to 0", "to 1"]]])

    @unittest.skipUnless(sys.platform == "linux", "reads /proc")
    def test_a_name_in_each_sample_takes_the_memory_of_a_name(self):
        for options in ({}, {"collate_fn": titles_of}):
            with own(Titled(500), batch_size=100, num_workers=2, **options) as loader:
                kept = list(loader)  # more batches than share memory
                self.assertEqual([f"title {i}" for i in range(400, 500)], kept[-1]["title"])
                for part in ("self", loader._program.process.pid):
                    status = pathlib.Path(f"/proc/{part}/status").read_text()
                    self.assertLess(int(status.split("RssShmem:")[1].split()[0]), 100_000, "kB")

    def test_a_sample_that_is_bad_or_hangs_is_left_out_alone(self):
        with self.assertLogs("nwt", "WARNING") as logged, own(Slow(), batch_size=50, errors=3, timeout=0.5, num_workers=2) as loader:
            self.assertEqual(sum(map(len, loader)), 97)
        self.assertIn("no such bird", "\n".join(logged.output))
        self.assertNotIn("LoadMany", "\n".join(logged.output))
        with own(Slow(2), batch_size=2, errors=1) as loader:
            self.assertEqual([batch.tolist() for batch in loader], [[1]])

    def test_weights_and_lengths_decide_the_order(self):
        with own(Birds(), batch_size=10, weights=[0] * 50 + [1] * 50, draws=30) as loader:
            self.assertEqual(len(loader), 3)
            self.assertTrue(all((images >= 50).all() for images, *_ in loader))
        with own(Birds(), batch_size=10, lengths=[1 + i % 10 for i in range(100)]) as loader:
            self.assertLess(max(np.ptp(images[:, 0, 0] % 10) for images, *_ in loader), 3)
        with self.assertRaisesRegex(ValueError, "weights: must be a number per sample: there are 100"):
            own(Birds(), weights=[1, 2])

    def test_a_function_of_the_epoch_decides_the_order_on_any_number_of_ranks(self):
        with own(Numbers(), batch_size=10, order=evens_first) as whole:
            self.assertEqual((len(whole), whole.indices(4, 0)[:2]), (10, [4 * 2, 5 * 2]))
            self.assertEqual([i for batch in whole for i in batch.tolist()], evens_first(0))
            batches = iter(whole)
            seen = [next(batches) for _ in range(2)]
            state = whole.state_dict()
            self.assertEqual(whole.batch(7, 9).tolist(), whole.indices(7, 9))
            self.assertEqual(next(batches).tolist(), whole.indices(1, 2))
        for rank in range(2):
            with own(Numbers(), batch_size=5, order=evens_first, rank=rank, world_size=2) as other:
                other.load_state_dict(state)
                seen += list(other)
                self.assertEqual(next(iter(other)).tolist(), other.indices(2, 0))
        self.assertEqual(sorted(np.concatenate(seen).tolist()), list(range(100)))
        with own(Numbers(), batch_size=10, order=backwards) as other:
            other.load_state_dict(state)
            with self.assertRaisesRegex(nwt.Error, "order gives other indices in epoch 1 than when it was saved") as changed:
                next(iter(other))
            self.assertEqual(changed.exception.code, "state-sampler")
            other.set_epoch(2)
            self.assertEqual(next(iter(other))[0], 99)
        with own(Birds(), batch_size=10, shuffle=True) as other:
            other.load_state_dict(state)
            with self.assertRaisesRegex(nwt.Error, "saved with another order"):
                next(iter(other))

    def test_a_state_at_the_end_of_an_order_begins_the_next_epoch(self):
        with own(Birds(), batch_size=30, order=evens_first, drop_last=True) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            state = loader.state_dict()
        with own(Numbers(), batch_size=50, order=evens_first, drop_last=True) as other:
            other.load_state_dict(state)
            self.assertEqual(next(iter(other)).tolist(), evens_first(1)[:50])

    def test_an_order_that_changes_its_length_or_leaves_the_dataset_is_told(self):
        for error, order in (
            ("order, epoch 1: there are 11 indices, and 10 in other epochs", lambda epoch: range(10 + epoch)),
            ("order, epoch 1: the indices 0 … 100 must be 0 … 99", lambda epoch: [0, 99 + epoch]),
            ("order, epoch 1: must be a list of indices", lambda epoch: [0.5 * epoch] if epoch else [0]),
        ):
            with self.subTest(error), own(Birds(), batch_size=10, order=order) as loader:
                list(loader)
                with self.assertRaisesRegex(Exception, error):
                    next(iter(loader))

    @unittest.skipIf(sys.platform == "win32", "Windows bounds no file")
    def test_an_order_that_the_disk_has_no_room_for_is_an_error(self):
        import resource

        bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
        with own(Numbers(), batch_size=10, order=evens_first) as loader:
            next(iter(loader))
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, bounds[1]))
            try:
                with self.assertRaisesRegex(OSError, "File too large"):
                    loader.set_epoch(5)
                    next(iter(loader))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
            loader.set_epoch(5)
            self.assertEqual(next(iter(loader)).tolist(), evens_first(5)[:10])

    def test_a_program_that_is_started_again_goes_on_in_a_written_order(self):
        with self.assertLogs("nwt", "WARNING"), own(Numbers(), batch_size=10, order=evens_first, prefetch=1) as loader:
            loader.set_epoch(3)
            batches = iter(loader)
            seen = next(batches).tolist()
            loader._program.process.kill()
            seen += [i for batch in batches for i in batch.tolist()]
            self.assertEqual(seen, evens_first(3))

    def test_mistakes_say_what_to_write(self):
        for error, of, options in (
            ("must have __len__ and __getitem__", iter([]), {}),
            (r"nwt.Loader\(.*: is a loader already: iterate over it", fake.loader(), {}),
            (r"field 'box' .* without elements: say ragged=", Named(), {}),
            ("DataLoader has no argument 'shufle': did you mean 'shuffle'", Birds(), {"shufle": True}),
            ("'worker': it is num_workers", Birds(), {"worker": 2}),
            ("'batch_sampler': .* in nwt.DataLoader also order, or lengths with batch_tokens", Birds(), {"batch_sampler": [[0]]}),
            ("'sampler': .*in nwt.DataLoader also order, weights or lengths", Birds(), {"sampler": [0]}),
            ("'multiprocessing_context': nothing to choose", Birds(), {"multiprocessing_context": "spawn"}),
            ("batch_tokens for lengths", Birds(), {"batch_tokens": 5}),
            ("cannot pickle '_thread.lock' object: let __getitem__ open files, connections and locks", Opened(), {}),
            ("two parts of a sample are named 'a.b'", Twice(), {}),
            (r"ragged=\['x'\]: must be a dict", Birds(), {"ragged": ["x"]}),
            ("arrays of complex128 can't be in a batch: convert them", Spectra(), {}),
            (r"is a class: write Birds\(\)", Birds, {}),
            (r"errors=0 \(errors=N leaves out up to N per epoch\): .*None: raise an exception, and give errors=N", Odd(None), {}),
            ("the sample has no 'y', which the first one has", Odd({"x": 1, "z": 2}), {}),
            ("'BELOW' is not defined: workers know only what stands above the first loader", Odd("BELOW"), {}),
            ("no batch has come for 0.5 s: if your code hangs in a sample, timeout= makes it an error", Slow(), {"patience": 0.5}),
        ):
            with self.subTest(error), self.assertRaisesRegex(Exception, f"(?s){error}"):
                list(own(of, **options))

    def run_script(self, text, typed=False, **environ):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "train.py"), "w") as file:
                file.write(text)
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
            how = {"input": text} if typed else {}
            return subprocess.run([sys.executable, *([] if typed else [file.name])], check=False, capture_output=True, text=True, timeout=120, env=env, **how)

    @unittest.skipUnless(sys.platform == "linux", "looks for processes in /proc")
    def test_a_script_without_a_guard_runs_and_leaves_no_process(self):
        said = self.run_script(
            "import nwt\nclass Birds:\n    def __len__(self): return 20\n    def __getitem__(self, i): return i\n"
            f"print('above')\ntrain = nwt.DataLoader(Birds(), batch_size=10, program={program.program()!r})\nprint([batch.tolist() for batch in train])\n"
            f"class Later(Birds): pass\nnwt.DataLoader(Later(), program={program.program()!r})\n"
        )
        self.assertIn("[10, 11, 12, 13, 14, 15, 16, 17, 18, 19]]", said.stdout, said.stderr)
        self.assertEqual(said.stdout.count("above"), 3)  # in the template of each loader too
        self.assertIn("define it above the first loader", said.stderr)
        self.assertTrue(no_more_children())

    def test_what_a_script_guards_runs_once_whatever_loaders_it_makes(self):
        said = self.run_script(
            "import nwt\nclass Birds:\n    def __len__(self): return 4\n    def __getitem__(self, i): return {'i': i, 'of': __name__}\n"
            "print('above', __name__)\nif __name__ == '__main__':\n    print('guarded')\n"
            f"    train, val = (nwt.DataLoader(Birds(), batch_size=4, num_workers=2, program={program.program()!r}) for _ in range(2))\n"
            "    print([(batch['i'].tolist(), set(batch['of'])) for loader in (train, val) for batch in loader])\n"
        )
        self.assertEqual(said.stdout.count("guarded"), 1, said.stderr)
        self.assertEqual((said.stdout.count("above __main__"), said.stdout.count("above __mp_main__")), (1, 2))
        self.assertIn("[([0, 1, 2, 3], {'__mp_main__'}), ([0, 1, 2, 3], {'__mp_main__'})]", said.stdout, said.stderr)

    def test_what_a_program_does_at_its_end_isnt_done_when_it_is_executed_once_more(self):
        text = (
            "import nwt\nclass Birds:\n    def __len__(self): return 4\n    def __getitem__(self, i): return i\n"
            f"try: print(nwt.DataLoader(Birds(), batch_size=4, program={program.program()!r}).num_samples)\nfinally: print('cleanup')\n"
        )
        said = self.run_script(text)
        self.assertEqual(said.stdout, "4\ncleanup\n", said.stderr)
        if not importlib.util.find_spec("cloudpickle"):
            self.assertIn("is defined at a prompt", self.run_script(text, typed=True).stderr)

    def test_the_programs_own_handlers_of_signals_hide_no_death(self):
        said = self.run_script(
            "import nwt, os, signal\nclass Birds:\n    def __len__(self): return 4\n    def __getitem__(self, i): return i or 1 / 0 if i < 3 else os.kill(os.getpid(), 9)\n"
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nsignal.set_wakeup_fd(-1)\n"
            f"list(nwt.DataLoader(Birds(), batch_size=4, errors=1, program={program.program()!r}))\n"
        )
        self.assertIn("it was killed, perhaps because memory ran out", said.stderr)

    def test_workers_load_though_the_program_finds_no_gpu_and_no_ranks_when_it_is_executed_once_more(self):
        said = self.run_script(
            "import os, nwt\nclass Birds:\n    def __len__(self): return 4\n    def __getitem__(self, i): return i\n"
            "if not os.environ['CUDA_VISIBLE_DEVICES'] and not os.environ['MASTER_ADDR']: raise RuntimeError('no GPU found')\n"
            f"print([batch.tolist() for batch in nwt.DataLoader(Birds(), batch_size=4, program={program.program()!r})])\n",
            CUDA_VISIBLE_DEVICES="0",
            MASTER_ADDR="localhost",
        )
        self.assertIn("[[0, 1, 2, 3]]", said.stdout, said.stderr)
        self.assertIn("no GPU found", said.stderr)
        self.assertIn("Put what failed under if __name__ == '__main__':, or below the loader", said.stderr)

    @unittest.skipUnless(importlib.util.find_spec("nbclient") and importlib.util.find_spec("ipykernel"), "there are no notebooks here")
    def test_a_notebook_that_is_interrupted_and_run_again_leaves_no_process(self):
        import nbclient
        import nbformat

        cell = nbformat.v4.new_code_cell(
            "import time, nwt\nclass Slow:\n    def __len__(self): return 1000\n    def __getitem__(self, i):\n        time.sleep(0.01)\n        return i\n"
            f"train = nwt.DataLoader(Slow(), batch_size=10, num_workers=2, program={program.program()!r})\nfor batch in train: print(batch[0], flush=True)"
        )

        def shown():
            return "".join(output.get("text", output.get("ename", "")) for output in cell.outputs)

        def interrupt():
            while "\n10\n" not in shown():
                time.sleep(0.05)
            asyncio.run(client.km._async_interrupt_kernel())

        client = nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), allow_errors=True, timeout=60)
        with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}), client.setup_kernel():
            for _ in range(10):
                cell.outputs = []
                user = threading.Thread(target=interrupt, daemon=True)
                user.start()
                client.execute_cell(cell, 0)
                user.join()
                said = shown()
                self.assertTrue(said.startswith("0\n10\n") and said.endswith("KeyboardInterrupt"), said)
                self.assertLessEqual(len(children()), 2 * 3, "those of the loader before end as it is replaced")
        self.assertTrue(no_more_children())

    @unittest.skipUnless(sys.platform == "linux", "looks for processes in /proc")
    def test_each_sample_comes_once_whatever_becomes_of_processes_and_ranks(self):
        """NWT_HISTORIES=100 tries 100 histories."""
        for number in range(int(os.environ.get("NWT_HISTORIES", "1"))):
            with self.subTest(history=number), tempfile.TemporaryDirectory() as folder, self.assertLogs("nwt", "WARNING"):
                self.history(random.Random(number), folder, hangs=11 if number % 5 == 4 else None)
        self.assertTrue(no_more_children())

    def history(self, chance, folder, hangs):
        birds = Unreliable(chance.randrange(80, 160), folder, hangs)
        order = chance.choice(({}, {"shuffle": True, "seed": chance.randrange(9)}, {"order": birds_of(len(birds))}))
        state, seen = {"epoch": 0, "samples": 0}, [collections.Counter() for _ in range(3)]
        while state["epoch"] < 2:
            ranks, batch, steps = chance.randint(1, min(3, len(birds) - state["samples"])), chance.randrange(6, 12), chance.randrange(1, 9)
            with contextlib.ExitStack() as opened:
                loaders = [
                    opened.enter_context(
                        own(birds, batch_size=batch, num_workers=chance.randint(1, 2), errors=99, timeout=2, rank=rank, world_size=ranks, **order)
                    )
                    for rank in range(ranks)
                ]
                states = []
                for loader in loaders:
                    loader.load_state_dict(state)
                    batches = iter(loader)
                    for _ in range(steps):
                        if chance.random() < 0.2:
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(chance.choice(children(loader)), signal.SIGKILL)
                        with contextlib.suppress(StopIteration):
                            seen[state["epoch"]].update(next(batches).tolist())
                    states.append(loader.state_dict())
            self.assertEqual(states, [states[0]] * ranks)
            state = states[0]
        for epoch in range(2):
            self.assertEqual(seen[epoch], collections.Counter(set(range(len(birds))) - birds.bad()))


def birds_of(n):
    return lambda epoch: random.Random(epoch).sample(range(n), n)


if __name__ == "__main__":
    unittest.main()
