"""What a loader promises, whatever its servers are."""

import json
import os
import pickle
import re
import subprocess
import sys
import unittest
from unittest import mock

import fake
import numpy as np
import program
from digests import epoch

import nwt
from nwt import _check as check

WHOLE = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def launched(environ):
    """With these variables, and those of no other launcher."""
    variables = dict(one.split("=", 1) for one in environ.split())
    kept = {name: value for name, value in os.environ.items() if not re.match("(LOCAL_)?(RANK|WORLD_SIZE)|OMPI_|PMI_|SLURM_|JOB_COMPL", name)}
    return mock.patch.dict(os.environ, {**kept, "PATH": os.path.dirname(program.program()) + os.pathsep + os.environ["PATH"], **variables}, clear=True)


class Iterating(unittest.TestCase):
    def test_a_bare_iter_changes_nothing(self):
        loader = fake.loader()
        iter(loader)
        self.assertEqual(loader.state_dict(), {"epoch": 0, "samples": 0})
        self.assertEqual(fake.indices(loader), WHOLE)
        loader.load_state_dict({"epoch": 3, "samples": 4, "order": "o"})
        iter(loader), iter(loader)
        self.assertEqual(fake.indices(loader), WHOLE[1:])
        self.assertEqual(loader.state_dict(), {"epoch": 4, "samples": 0})

    def test_the_state_is_of_the_epoch_that_was_chosen_until_a_batch_comes(self):
        loader = fake.loader()
        list(loader)
        loader.set_epoch(np.int64(7))
        self.assertEqual(loader.state_dict(), {"epoch": 7, "samples": 0})
        batches = epoch(loader, 9)
        self.assertEqual(loader.state_dict(), {"epoch": 9, "samples": 0})
        next(batches)
        self.assertEqual(loader.state_dict(), {"epoch": 9, "samples": 4, "order": "o"})
        self.assertEqual(json.loads(json.dumps(loader.state_dict())), loader.state_dict())

    def test_a_state_at_an_epochs_end_goes_on_with_the_next(self):
        loader, other = fake.loader(), fake.loader()
        list(loader)
        for state in (loader.state_dict(), {"epoch": 0, "samples": 10, "order": "o"}):
            other.load_state_dict(state)
            self.assertEqual(fake.indices(other), WHOLE)
            self.assertEqual(other.state_dict(), {"epoch": 2, "samples": 0})

    def test_a_state_beyond_its_epoch_is_refused(self):
        loader = fake.loader()
        loader.load_state_dict({"epoch": 0, "samples": 11})
        with self.assertRaisesRegex(nwt.Error, "^state: its samples are more than an epoch has$"):
            next(iter(loader))

    def test_choosing_another_epoch_than_the_loaded_one_is_logged(self):
        loader = fake.loader()
        loader.load_state_dict({"epoch": 2, "samples": 4})
        with self.assertNoLogs("nwt", "WARNING"):
            loader.set_epoch(2)
        self.assertEqual(fake.indices(loader), WHOLE[1:])
        loader.load_state_dict({"epoch": 2, "samples": 4})
        with self.assertLogs("nwt", "WARNING") as logged:
            loader.set_epoch(0)
        self.assertIn("set_epoch(0) after load_state_dict: going on in epoch 2, so begin the loop there", logged.output[0])
        self.assertEqual(fake.indices(loader), WHOLE[1:])
        self.assertEqual(loader.state_dict(), {"epoch": 3, "samples": 0})

    def test_what_is_no_state_is_refused_and_changes_nothing(self):
        loader = fake.loader()
        loader.load_state_dict({"epoch": 2, "samples": 4})
        for wrong in (
            None,
            3,
            {},
            {"epoch": 1},
            {"epoch": -1, "samples": 0},
            {"epoch": 1.5, "samples": 0},
            {"epoch": 1, "samples": 0, "order": 3},
            {"layer.weight": 1},
        ):
            with self.assertRaisesRegex(ValueError, "state"):
                loader.load_state_dict(wrong)
        self.assertEqual(loader.state_dict(), {"epoch": 2, "samples": 4})
        self.assertEqual(fake.indices(loader), WHOLE[1:])

    def test_each_iteration_is_the_next_epoch_also_after_a_break(self):
        loader = fake.loader()
        for _ in loader:
            break
        self.assertEqual(loader.state_dict(), {"epoch": 0, "samples": 4, "order": "o"})
        self.assertEqual(fake.indices(loader), WHOLE)
        self.assertEqual(loader.state_dict()["epoch"], 2)

    def test_an_older_iteration_says_that_another_has_begun(self):
        loader = fake.loader()
        older = iter(loader)
        next(older)
        next(iter(loader))
        with self.assertRaisesRegex(nwt.Error, "begun another iteration"):
            next(older)

    def test_a_short_epochs_end_is_no_gap(self):
        loader = fake.loader(prefetch=4)
        batches = iter(loader)
        next(batches)
        self.assertEqual(loader._transport.asked, [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0), (1, 0, 1)])
        list(batches)
        self.assertEqual(fake.indices(loader), WHOLE)
        self.assertEqual(len(set(loader._transport.asked)), len(loader._transport.asked), "nothing is asked for twice")
        self.assertEqual(loader._transport.open, 1)

    def test_what_was_asked_for_ahead_is_forgotten_if_another_epoch_is_chosen(self):
        loader = fake.loader()
        list(loader)
        batches = epoch(loader, 5)
        next(batches)
        self.assertEqual(loader.state_dict()["epoch"], 5)
        self.assertEqual(loader._transport.open, 1)

    def test_an_epoch_of_nothing_ends(self):
        loader = fake.loader(samples=0)
        self.assertEqual((list(loader), list(loader)), ([], []))

    def test_an_error_ends_the_iteration(self):
        loader = fake.loader(bad=[5])
        batches = iter(loader)
        next(batches)
        with self.assertRaisesRegex(nwt.Error, "bad sample number 1 of epoch 0"):
            next(batches)
        self.assertEqual(list(batches), [])
        self.assertEqual(loader.state_dict(), {"epoch": 0, "samples": 4, "order": "o"})


class Stats(unittest.TestCase):
    def test_they_count_what_came_and_how_long_the_program_waited_for_it(self):
        loader = fake.loader(bad=[5], errors=1)
        self.assertEqual(loader.stats(), {"batches": 0, "samples": 0, "bad": 0, "waited": 0, "workers": 3})
        with mock.patch("time.perf_counter", iter(range(100)).__next__), self.assertLogs("nwt"):
            list(loader)
        self.assertEqual(loader.stats(), {"batches": 3, "samples": 9, "bad": 1, "waited": 3, "workers": 3})


class Bad(unittest.TestCase):
    def test_bad_samples_are_left_out_logged_and_counted(self):
        loader = fake.loader(bad=[5, 9], errors=2)
        with self.assertLogs("nwt", "WARNING") as logged:
            self.assertEqual(fake.indices(loader), [[0, 1, 2, 3], [4, 6, 7], [8]])
        self.assertEqual(
            [line.split(":", 2)[2] for line in logged.output], ["left out sample 5, number 1 in epoch 0: torn", "left out sample 9, number 2 in epoch 0: torn"]
        )
        self.assertEqual(loader.bad, 2)
        self.assertEqual(len(list(loader)), 3, "the next epoch may have as many")
        self.assertEqual(loader.bad, 4)
        self.assertEqual([(one.index, one.position, one.epoch, str(one)) for one in loader.bad_samples[1:3]], [(9, 9, 0, "torn"), (5, 5, 1, "torn")])

    def test_one_more_is_an_error_that_names_it(self):
        with self.assertRaisesRegex(nwt.SampleError, "bad sample number 2 of epoch 0, and errors=1 .*: torn") as told, self.assertLogs("nwt"):
            list(fake.loader(bad=[5, 9], errors=1))
        again = pickle.loads(pickle.dumps(told.exception))
        self.assertEqual((again.index, again.position, again.epoch, str(again)), (9, 9, 0, str(told.exception)))

    def test_a_batch_of_bad_samples_alone_is_skipped_and_on_several_ranks_an_error(self):
        with self.assertLogs("nwt"):
            self.assertEqual(fake.indices(fake.loader(bad=[4, 5, 6, 7], errors=4)), [WHOLE[0], WHOLE[2]])
            with self.assertRaisesRegex(nwt.Error, "the other ranks would wait"):
                list(fake.loader(bad=[0, 1, 2, 3], errors=4, rank=0, world_size=2))


class Arguments(unittest.TestCase):
    def test_what_is_wrong_is_said_in_pythons_words(self):
        for error, text, kwargs in (
            (TypeError, "Loader has no argument 'world': it is world_size", {"world": 2}),
            (TypeError, "Loader has no argument 'nonsense'", {"nonsense": 2}),
            (ValueError, "rank=2: must be from 0 to 1", {"rank": 2, "world_size": 2}),
            (ValueError, "rank=0, world_size=None: give both", {"rank": 0}),
            (ValueError, "rank=-1: must be from 0", {"rank": -1, "world_size": 2}),
            (TypeError, "prefetch=True: must be an integer", {"prefetch": True}),
            (ValueError, "prefetch=0: must be from 1 to 64", {"prefetch": 0}),
            (ValueError, "errors=-1: must be at least 0", {"errors": -1}),
            (TypeError, "patience='x': must be a number", {"patience": "x"}),
            (ValueError, "patience=0: must be from 0.001", {"patience": 0}),
            *((ValueError, "token: must be printable ASCII", {"token": token}) for token in ("", "a\n", "ü", b"secret")),
        ):
            with self.subTest(text), self.assertRaises(error) as raised:
                fake.loader(**kwargs)
            self.assertIn(text, str(raised.exception))

    def test_addresses_are_one_or_several_but_not_mixed(self):
        self.assertEqual(check.addresses("host:1"), ["host:1"])
        self.assertEqual(check.addresses(("a:1", "b:1")), ["a:1", "b:1"])
        for wrong in ([], "", [3], ["shared:/a", "host:1"], ["host:1", "shared:/a"]):
            with self.assertRaisesRegex(ValueError, "addresses="):
                check.addresses(wrong)

    def test_a_path_that_no_socket_can_have_is_told_at_once(self):
        self.assertEqual(check.addresses("shared:" + 107 * "a"), ["shared:" + 107 * "a"])
        for path, has in (("", 0), (108 * "a", 108), (54 * "ü", 108), ("/a\0b", 4)):
            with self.subTest(path), self.assertRaisesRegex(ValueError, f"the path of a socket must have 1 … 107 bytes, none of them 0; it has {has}"):
                check.addresses("shared:" + path)

    def test_numbers_of_numpy_are_numbers(self):
        loader = fake.loader(rank=np.int32(1), world_size=np.uint8(2), prefetch=np.int64(2), errors=np.int16(0), patience=np.float32(1))
        self.assertEqual(loader._transport.place, (1, 2))
        self.assertIs(check.boolean("shuffle", np.True_), True)

    def test_a_launcher_sets_the_rank_and_what_is_given_counts_first(self):
        pid = os.getpid()
        for environ, want in (
            ("", (0, 1)),
            ("WORLD_SIZE=1 RANK=", (0, 1)),
            ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", (5, 8)),
            ("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=6", (2, 6)),
            ("PMI_RANK=1 PMI_SIZE=2", (1, 2)),
            ("SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4", (3, 4)),
            (f"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_TASK_PID={pid} OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=6", (3, 4)),  # srun within mpirun
            (f"SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_TASK_PID={pid + 1} OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=6", (2, 6)),
            ("JOB_COMPLETION_INDEX=2 WORLD_SIZE=3", (2, 3)),
            ("NODE_RANK=0 LOCAL_RANK=1 WORLD_SIZE=2", (1, 2)),  # Lightning
        ):
            with self.subTest(environ), launched(environ):
                with self.assertLogs("nwt", "INFO") if want[1] > 1 else self.assertNoLogs("nwt") as logged:
                    loader = fake.loader()
                self.assertEqual((loader.rank, loader.world_size), want)
                if want[1] > 1:
                    self.assertRegex(logged.output[0], rf"rank {want[0]} of {want[1]}, .*={want[1]} .*={want[0]}")
                self.assertEqual(fake.loader(rank=0, world_size=9).world_size, 9)

    def test_a_rank_that_is_set_wrongly_is_named(self):
        for environ, text in (
            ("RANK=8 WORLD_SIZE=8", 'rank and world from torchrun: RANK is "8"; want a number from 0 to 7 (or give rank and world_size)'),
            ("WORLD_SIZE=2", 'WORLD_SIZE is "2", but no rank is set: want RANK or, in an Indexed Job, JOB_COMPLETION_INDEX (or give rank and world_size)'),
        ):
            with launched(environ), self.assertRaisesRegex(ValueError, f"^{re.escape(text)}$"):
                fake.loader()
        with launched("RANK=0 WORLD_SIZE=2"), mock.patch("nwt._program.find", side_effect=nwt.Error("it is missing")):
            with self.assertRaisesRegex(nwt.Error, r"it is missing \(or give rank and world_size\)"):
                fake.loader()

    def test_a_program_that_cannot_find_the_rank_is_named(self):
        says = program.folder() / "other"
        for script, text in (
            ("echo flag provided but not defined >&2; exit 2", "flag provided"),
            ("kill -9 $$", "status -9"),
            ("echo nonsense", "Expecting value"),
        ):
            says.write_text(f"#!/bin/sh\n{script}\n")
            says.chmod(0o700)
            with self.subTest(script), launched("RANK=0 WORLD_SIZE=2"), mock.patch("nwt._program.find", return_value=str(says)):
                with self.assertRaisesRegex(nwt.Error, f"^{re.escape(str(says))} -rank: .*{text}"):
                    fake.loader()

    def test_without_a_launcher_no_program_is_needed(self):
        for environ in ("", "WORLD_SIZE=1", "RANK=", "OMPI_MCA_btl=self RANKING_URL=x"):
            with self.subTest(environ), launched(environ), mock.patch("nwt._program.find", side_effect=nwt.Error("it is missing")):
                self.assertEqual(fake.loader().world_size, 1)

    def test_the_ranks_of_a_host_share_its_cpus(self):
        says = program.folder() / "says"  # how many share them
        says.write_text(f'#!/bin/sh\n[ "$1" = - ] || exec {program.program()} "$@"\necho "{{\\"error\\": \\"$LOCAL_WORLD_SIZE of $WORLD_SIZE\\"}}" >&2\n')
        says.chmod(0o700)
        openmpi = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4"
        srun = "SLURM_PROCID=8 SLURM_STEP_NUM_TASKS=16 SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x4) SLURM_GTIDS=8,9,10,11"
        for environ, own, parents, want in (
            ("", 8, 8, 1),
            ("RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8", 96, 96, 8),
            ("LOCAL_RANK=1 WORLD_SIZE=2", 96, 96, 2),
            ("RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8", 12, 96, 1),  # each has its own
            ("RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8", 48, 96, 4),  # four are bound to each socket
            ("RANK=x WORLD_SIZE=2", 96, 96, 1),
            (f"RANK=3 WORLD_SIZE=4 {openmpi}", 96, 96, 4),  # a program that sets RANK under mpirun
            (f"RANK=3 WORLD_SIZE=8 {openmpi}", 96, 96, 1),  # of another world
            (f"RANK=8 WORLD_SIZE=16 LOCAL_RANK=0 {srun}", 96, 96, 4),
            (f"OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=6 {srun} SLURM_TASK_PID={os.getpid()}", 96, 96, 4),  # srun within mpirun
            ("SLURM_GTIDS=0", 96, 96, 1),  # a batch script
        ):
            with self.subTest(environ), launched(environ):
                with mock.patch("os.sched_getaffinity", lambda pid, own=own, parents=parents: range(parents if pid else own), create=True):
                    with self.assertRaisesRegex(nwt.Error, f"{want} of {want}"):
                        nwt.Files(__file__, program=says, rank=0, world_size=2)

    def test_there_is_at_least_one_path(self):
        for wrong in ([], "", [""], ["a\0b"]):
            with self.subTest(wrong), self.assertRaises(ValueError):
                check.paths("shards", wrong)

    def test_habits_of_pytorch_are_answered(self):
        loader = fake.loader()
        with self.assertRaisesRegex(TypeError, r"nwt.torch.DataLoader\(loader\)"):
            loader[0]
        for name, text in (
            ("dataset", "num_samples is the number of samples"),
            ("samples", r"files\[i\] is the file of sample i"),
            ("bacth", "did you mean 'batch'"),
        ):
            with self.assertRaisesRegex(AttributeError, text):
                getattr(loader, name)
        self.assertEqual(check.paths("paths", "~/a"), [os.path.expanduser("~/a")])
        self.assertFalse(hasattr(loader, "nonsense"))
        self.assertEqual((len(loader), loader.num_samples, loader.batch_size, loader.class_to_idx), (3, 10, 4, {"cat": 0, "dog": 1}))


class Ends(unittest.TestCase):
    def test_after_close_everything_says_so(self):
        with fake.loader() as loader:
            batches = iter(loader)
            next(batches)
        self.assertTrue(loader._transport.closed)
        loader.close()
        for call in (lambda: iter(loader), lambda: next(batches)):
            with self.assertRaisesRegex(nwt.Error, "the loader is closed"):
                call()
        self.assertEqual((len(loader), loader.state_dict()["samples"]), (3, 4))

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_is_told_to_make_one_of_its_own(self):
        loader = fake.loader()
        with (
            mock.patch("os.getpid", return_value=-1),
            self.assertRaisesRegex(nwt.Error, "doesn't survive a fork: make one in each process, or start them by spawn"),
        ):
            iter(loader)

    def test_a_pickled_loader_is_its_arguments_and_its_state(self):
        loader = fake.loader(errors=3, prefetch=2, rank=0, world_size=1)
        next(iter(loader))
        with mock.patch.object(nwt.Loader, "_open", lambda self: fake.Transport()):
            other = pickle.loads(pickle.dumps(loader))
        self.assertEqual((other._errors, other._prefetch, other.state_dict()), (3, 2, loader.state_dict()))
        self.assertEqual(fake.indices(other), WHOLE[1:])

    def test_what_is_asked_for_ends_with_a_forgotten_loader(self):
        loader = fake.loader()
        next(iter(loader))
        transport = loader._transport
        del loader
        self.assertEqual((transport.open, transport.closed), (0, True))


class Package(unittest.TestCase):
    def test_what_needs_pyarrow_says_what_to_install(self):
        with mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.flight": None}), self.assertRaisesRegex(ImportError, r"pip install nwt\[flight\]"):
            nwt.Loader("localhost:7474")

    def test_importing_it_takes_numpy_alone(self):
        said = subprocess.run(
            [sys.executable, "-c", "import sys, nwt; print([m for m in ('pyarrow', 'torch', 'asyncio', 'concurrent.futures') if m in sys.modules])"],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        self.assertEqual(said.stdout, "[]\n")


if __name__ == "__main__":
    unittest.main()
