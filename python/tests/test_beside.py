"""What loaders with a server of their own promise."""

import gc
import inspect
import io
import json
import os
import pathlib
import pickle
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import typing
import unittest
from unittest import mock

import numpy as np
import program
from digests import digest, epoch

import nwt
from nwt import _beside as beside
from nwt import _result


def pictures(**kwargs):
    kwargs = {"batch_size": 4, "size": 32, "num_workers": 2, **kwargs}
    return nwt.ImageFolder(program.pictures(), program=program.program(), **kwargs)


def ends(pid):
    """Whether a process that isn't ours to wait for ends."""
    for _ in range(1000):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


class Folders(unittest.TestCase):
    def test_a_folder_is_images_labels_and_indices(self):
        with pictures() as loader:
            batches = list(loader)
            self.assertEqual(
                {name: (a.dtype, a.shape) for name, a in batches[0].items()},
                {"image": (np.uint8, (4, 3, 32, 32)), "label": (np.int64, (4,)), "index": (np.int64, (4,))},
            )
            index, label, image = (np.concatenate([batch[name] for batch in batches]) for name in ("index", "label", "image"))
            self.assertEqual(index.tolist(), list(range(20)))
            self.assertEqual(label.tolist(), [0] * 10 + [1] * 10)
            self.assertEqual(image[:, 0, 16, 16].tolist(), [10 * i for i in range(20)])
            self.assertEqual((loader.classes, loader.class_to_idx, loader.num_samples, len(loader)), (["cat", "dog"], {"cat": 0, "dog": 1}, 20, 5))
            self.assertEqual(loader.files[11], str(program.pictures() / "dog" / "001.png"))

    def test_the_order_is_the_seeds_and_the_epochs(self):
        orders = []
        for kwargs in ({"seed": 1}, {"seed": 1}, {"seed": 2**64 - 1}, {"seed": np.uint32(3)}):
            with pictures(shuffle=True, **kwargs) as loader:
                orders += [np.concatenate([batch["index"] for batch in loader]).tolist() for _ in range(2)]
        self.assertEqual(orders[0:2], orders[2:4])
        self.assertEqual(len({tuple(order) for order in orders}), 6)
        self.assertEqual({tuple(sorted(order)) for order in orders}, {tuple(range(20))})

    def test_validation_has_the_classes_of_training(self):
        few = program.pictures(("dog",), 3)
        with nwt.ImageFolder(few, classes=["cat", "dog", "eel"], batch_size=3, size=32, program=program.program()) as loader:
            self.assertEqual((next(iter(loader))["label"].tolist(), loader.classes), ([1] * 3, ["cat", "dog", "eel"]))
        with self.assertRaisesRegex(nwt.Error, 'among the classes given: "dog"'):
            nwt.ImageFolder(few, classes=["cat"], program=program.program())

    def test_what_is_drawn_at_random_is_for_training(self):
        def first(**kwargs):
            with nwt.ImageFolder(program.pictures(slope=3), batch_size=4, size=32, seed=5, program=program.program(), **kwargs) as loader:
                return digest(next(iter(loader)))

        self.assertEqual(first(), first())
        kinds = [first(), first(train=True), first(train=True, scale=(0.1, 0.2)), first(train=True, color_jitter=0.4)]
        self.assertEqual(len(set(kinds)), 4)
        self.assertEqual(first(train=True, flip=0), first(train=True, flip=False))
        with pictures(train=True, ratio=(1, 2), flip=1.0, color_jitter=(0.1, 0.1, 0.1, 0.1), size=(24, 48)) as loader:
            self.assertEqual(next(iter(loader))["image"].shape, (4, 3, 24, 48))

    def test_what_doesnt_fill_a_batch_is_dropped_or_comes(self):
        with pictures(batch_size=8) as loader, pictures(batch_size=8, drop_last=True) as dropping:
            self.assertEqual(([len(b["index"]) for b in loader], [len(b["index"]) for b in dropping]), ([8, 8, 4], [8, 8]))
            self.assertEqual((len(dropping), dropping.drop_last, dropping.state_dict()), (2, True, {"epoch": 1, "samples": 0}))

    def test_ranks_divide_the_samples_and_a_state_is_of_any_number_of_them(self):
        with pictures(shuffle=True) as loader:
            batches = iter(loader)
            seen = np.concatenate([next(batches)["index"] for _ in range(2)]).tolist()
            for rank in range(2):
                with pictures(shuffle=True, rank=rank, world_size=2) as one:
                    one.load_state_dict(loader.state_dict())
                    seen += np.concatenate([batch["index"] for batch in one]).tolist()
        self.assertEqual(sorted(seen), list(range(20)))

    def test_what_the_program_says_is_told(self):
        with self.assertRaisesRegex(nwt.Error, "^drop_last=True: there are fewer samples than one batch") as few:
            pictures(batch_size=64, drop_last=True)
        self.assertEqual(few.exception.code, "few-samples")
        with pictures(shuffle=True) as loader, pictures(shuffle=True, seed=2) as other:
            next(iter(loader))
            other.load_state_dict(loader.state_dict())
            with self.assertRaisesRegex(nwt.Error, "^state: it was saved with another seed, .*begin the next epoch .set_epoch.$") as seed:
                next(iter(other))
            self.assertEqual(seed.exception.code, "state-seed")

    def test_what_is_wrong_is_said(self):
        for error, text, kwargs in (
            (TypeError, "shuffle=42: must be True or False; the order's seed is seed", {"shuffle": 42}),
            (ValueError, f"seed=-5: must be from 0 to {2**64 - 1}", {"seed": -5}),
            (ValueError, f"seed={2**64}: must be", {"seed": 2**64}),
            (TypeError, "batch_size=1.5: must be an integer", {"batch_size": 1.5}),
            (ValueError, "num_workers=-1: must be from 0", {"num_workers": -1}),
            (ValueError, "step_time=0.1: is for tune=True", {"step_time": 0.1}),
            (ValueError, "step_time=0: must be from 1e-06 to 60", {"step_time": 0, "tune": True}),
            (ValueError, "step_time=120: must be from 1e-06 to 60", {"step_time": 120, "tune": True}),
            (TypeError, "step_time='0.1 s': must be a number", {"step_time": "0.1 s", "tune": True}),
            (ValueError, "size=(1, 2, 3): must be a number of pixels, or (height, width)", {"size": (1, 2, 3)}),
            (TypeError, "size='32': must be an integer", {"size": "32"}),
            (ValueError, "flip is for train=True", {"flip": 0.5}),
            (ValueError, "flip=2: must be from 0 to 1", {"flip": 2, "train": True}),
            (TypeError, "scale=0.5: must be 2 numbers", {"scale": 0.5, "train": True}),
            (ValueError, "the first must not be above the second", {"scale": (1, 0.5), "train": True}),
            (TypeError, "ImageFolder has no argument 'transforms': it is transform, a function of each picture", {"transforms": None}),
            (TypeError, "no argument 'pin_memory': write nwt.torch.DataLoader(loader, pin_memory=True)", {"pin_memory": True}),
            (TypeError, "no argument 'workers': it is num_workers", {"workers": 2}),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, re.escape(text)):
                pictures(**kwargs)
        for kind, wrong in ((FileNotFoundError, "/nothing"), (NotADirectoryError, program.pictures() / "cat" / "001.png")):
            with self.assertRaisesRegex(kind, rf"^\[Errno \d+\] .*: '{wrong}/?'$"):
                nwt.ImageFolder(wrong, program=program.program())
        with self.assertRaisesRegex(ValueError, "ImageFolder takes a folder"):
            nwt.Images(program.pictures())
        for url in (lambda: nwt.ImageFolder("s3://bucket/train"), lambda: nwt.WebDataset("https://host/train-{000..146}.tar")):
            with self.assertRaisesRegex(ValueError, "must be a path on this machine: copy or mount"):
                url()
        for wrong in (lambda: nwt.Images(3), lambda: nwt.ImageFolder("x", classes=[]), lambda: nwt.ImageFolder("x", classes=[1])):
            with self.assertRaisesRegex(TypeError, "(paths=3: must be paths|must be names of folders, such as train.classes)"):
                wrong()

    def test_a_sample_that_cannot_be_loaded_says_how_to_leave_it_out(self):
        at = program.folder()
        (at / "cat").mkdir()
        (at / "cat" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
        with (
            nwt.ImageFolder(at, program=program.program()) as loader,
            self.assertRaisesRegex(nwt.SampleError, r"bad sample number 1 of epoch 0, and errors=0 .*sample 0.*torn.jpg: ") as told,
        ):
            next(iter(loader))
        error = told.exception
        self.assertEqual((error.index, error.position, error.epoch, error.code, loader.bad, loader.bad_samples), (0, 0, 0, "", 0, []))

    def test_a_missing_program_says_what_to_install(self):
        with (
            mock.patch("shutil.which", return_value=None),
            mock.patch("os.path.exists", return_value=False),
            self.assertRaisesRegex(nwt.Error, "go build -C serve -o .* pip install"),
        ):
            nwt.ImageFolder("/x")


class Others(unittest.TestCase):
    def test_pictures_come_in_the_order_of_their_paths(self):
        paths = [program.pictures() / "dog" / "002.png", str(program.pictures() / "cat" / "001.png")]
        labels = np.array([7, 9])
        with nwt.Images(paths, batch_size=2, size=32, program=program.program()) as loader:
            batch = next(iter(loader))
            self.assertEqual((list(batch), batch["image"][:, 0, 0, 0].tolist(), labels[batch["index"]].tolist()), (["image", "index"], [120, 10], [7, 9]))
            self.assertEqual(loader.files, [str(path) for path in paths])

    def test_labels_come_with_their_pictures(self):
        listed = sorted(program.pictures().glob("*/*.png"))[:9]
        for labels in (list(range(100, 109)), np.arange(9) / 2, np.arange(18, dtype=np.uint8).reshape(9, 2)):
            with nwt.Images(listed, labels=labels, batch_size=4, size=32, shuffle=True, program=program.program()) as loader:
                again = pickle.loads(pickle.dumps(loader))
                for one in (loader, again):
                    for batch in one:
                        np.testing.assert_array_equal(batch["label"], np.asarray(labels)[batch["index"]])
                        self.assertEqual(batch["label"].dtype, np.asarray(labels).dtype)
                again.close()
        with nwt.Files(listed, labels=range(9), batch_size=9, program=program.program()) as loader:
            self.assertEqual(next(iter(loader))["label"].tolist(), list(range(9)))
        for error, text, make in (
            (ValueError, "labels: there are 8, but 9 paths", lambda: nwt.Images(listed, labels=range(8))),
            (TypeError, "number names by sorted(set(names)).index", lambda: nwt.Images(listed, ["cat"] * 9)),
            (TypeError, "labels: ", lambda: nwt.Images(listed, [[1], [1, 2]] + [[1]] * 7)),
            (TypeError, "labels must be numbers", lambda: nwt.Images(listed, np.ones(9, np.longdouble))),
            (ValueError, "extensions is for a folder", lambda: nwt.Files(listed, extensions=[".png"])),
            (TypeError, "has no argument 'weights': it is an argument of nwt.DataLoader", lambda: nwt.ImageFolder(program.pictures(), weights=[1])),
            (TypeError, "has no argument 'lengths': it is an argument of nwt.DataLoader", lambda: nwt.Files(program.pictures(), lengths=[1])),
            (TypeError, "has no argument 'worker_init_fn': it is an argument of nwt.DataLoader", lambda: nwt.ImageFolder("x", worker_init_fn=print)),
            (TypeError, "ImageFolder has no argument 'targets': it is labels", lambda: nwt.ImageFolder(program.pictures(), targets=[1])),
            (TypeError, "labels must be numbers, one or several per path", lambda: nwt.Images(listed, labels=3)),
            (ValueError, "labels is for a list of paths", lambda: nwt.Files(program.pictures(), labels=range(20))),
        ):
            with self.subTest(text), self.assertRaisesRegex(error, re.escape(text)):
                make()
        with nwt.Images(listed, np.arange(9, dtype=">i4"), size=32, program=program.program()) as loader:
            self.assertTrue(next(iter(loader))["label"].dtype.isnative)

    def test_help_explains_all_arguments(self):
        for kind in (nwt.ImageFolder, nwt.Images, nwt.Files, nwt.WebDataset, nwt.Tokens):
            for name in typing.get_type_hints(beside.Options):
                self.assertRegex(kind.__doc__, rf"\b{name}\b", kind)

    def test_a_bad_sample_is_left_out_while_tuning_too(self):
        at = program.folder()
        for i in range(30):
            program.png(at / "a" / f"{i}.png", 40, 40, i)
        for i in range(10):
            (at / "a" / f"{i}.png").write_bytes(b"x")
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(program.folder())), self.assertLogs("nwt"):
            with nwt.ImageFolder(at, size=32, tune=True, errors=10, program=program.program()) as loader:
                self.assertEqual(sum(len(batch["index"]) for batch in loader), 20)
                self.assertEqual(loader.bad, 10)

    def test_bytes_of_files_are_as_long_as_the_longest(self):
        at = program.folder()
        for name, text in (("a/1.txt", "one"), ("b/2.txt", "three"), ("b/3.wav", "left out")):
            (at / name).parent.mkdir(exist_ok=True)
            (at / name).write_text(text)
        with nwt.Files(at, extensions=[".txt"], batch_size=2, program=program.program()) as loader:
            batch = next(iter(loader))
            self.assertEqual(
                (batch["data"].tobytes(), batch["data.len0"].tolist(), batch["label"].tolist(), loader.classes), (b"one\0\0three", [3, 5], [0, 1], ["a", "b"])
            )
        with nwt.Files([at / "b/3.wav"], batch_size=2, program=program.program()) as loader:
            self.assertEqual({name: a.tolist() for name, a in next(iter(loader)).items()}, {"data": [list(b"left out")], "index": [0], "data.len0": [8]})

    def test_samples_of_shards_have_numbers(self):
        at, n = program.folder(), 0
        for shard in range(2):
            with tarfile.open(at / f"train-{shard:03}.tar", "w") as tar:
                for _ in range(3):
                    for ext, data in (("cls", str(n % 2).encode()), ("png", (program.pictures() / "cat" / f"{n:03}.png").read_bytes()), ("json", b"{}")):
                        info = tarfile.TarInfo(f"./{n:05}.{ext}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
                    n += 1
        with nwt.WebDataset(at / "train-{000..001}.tar", batch_size=6, size=32, shuffle=True, program=program.program()) as loader:
            batch = next(iter(loader))
            self.assertEqual(sorted(batch["index"].tolist()), list(range(6)))
            self.assertEqual((batch["image"][:, 0, 0, 0].tolist(), batch["label"].tolist()), ((10 * batch["index"]).tolist(), (batch["index"] % 2).tolist()))

    def test_tokens_come_in_windows_with_one_more(self):
        at = program.folder()
        np.arange(100, dtype=np.uint16).tofile(at / "1.bin")
        np.arange(1000, 1021, dtype=np.uint16).tofile(at / "2.bin")
        with nwt.Tokens([at / "1.bin", at / "2.bin"], length=10, batch_size=20, program=program.program()) as loader:
            batch = next(iter(loader))
            self.assertEqual((batch["tokens"].dtype, batch["tokens"].shape), (np.int64, (11, 11)))
            self.assertEqual([batch["tokens"][i].tolist() for i in (0, 8, 9, 10)], [list(range(b, b + 11)) for b in (0, 80, 1000, 1010)])
        np.array([-100, 5, 2**31 - 1], np.int32).tofile(at / "3.bin")
        with nwt.Tokens(at / "3.bin", length=2, dtype=np.int32, program=program.program()) as loader:
            self.assertEqual(next(iter(loader))["tokens"].tolist(), [[-100, 5, 2**31 - 1]])
        with self.assertRaisesRegex(nwt.Error, "must be a whole number of tokens"):
            nwt.Tokens(at / "2.bin", dtype="uint32", program=program.program())


class Programs(unittest.TestCase):
    def test_advice_is_in_pythons_words(self):
        said = (pathlib.Path(__file__).parents[2] / "internal/report/advice.go").read_text()
        self.assertEqual([words for words in _result.WORDS if words not in said], [])

    def test_it_tunes_only_if_asked(self):
        with pictures() as loader:
            self.assertIsNone(loader.result)
        cache = program.folder()
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(cache), HOME=str(cache)), self.assertLogs("nwt", "INFO") as logged, pictures(tune=True) as loader:
            result = loader.result
            self.assertIn(str(result), logged.output[-1])
            self.assertEqual(loader.num_workers, max(1, result.workers))
            (chosen,) = (one for one in result.trials if one.workers == result.workers)
            self.assertTrue(0 <= chosen.low <= chosen.mean <= chosen.high < 60 and 0 < chosen.p99 < 60 and chosen.memory > 2**20, chosen)
            self.assertEqual([int(row) for row in re.findall(r"^ +(\d+) +[\d.]", str(result), re.MULTILINE)], [one.workers for one in result.trials])
            for text in result.warnings + result.advice:
                self.assertIn(text, str(result))
            self.assertEqual(pickle.loads(pickle.dumps(result)), result)
        self.assertTrue(list(cache.rglob("workers.json")))
        self.assertRegex(result.advice[0], "step_time")
        self.assertNotRegex(repr(result) + str(result), "With[A-Z]|Cached|Precompute")  # of Go

    def test_it_tunes_beside_a_step_of_the_time_that_is_told(self):
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(program.folder())), self.assertLogs("nwt", "INFO"), pictures(tune=True, step_time=0.02) as loader:
            for trial in loader.result.trials:
                self.assertGreater(trial.mean - trial.wait, 0.01)

    def test_a_result_says_which_numbers_may_not_be_chosen_and_why(self):
        trial = {"workers": 2, "mean_ns": 3_000_000, "low_ns": 2_000_000, "high_ns": 4_000_000, "p99_ns": 9_000_000, "wait_ns": 0, "cpu": 0.5, "memory": 0}
        figures = {
            "workers": 2, "fastest": 2, "trials": [trial], "alpha_ns": 0, "iterations": 100, "repeatability": 0, "floor_ns": 0, "cached": False, "reason": "",
        }  # fmt: skip
        self.assertEqual(_result.told({"result": "", "figures": figures}).ruled_out, [])  # as Go leaves it out
        figures["ruled_out"] = [{"workers": 8, "code": "memory", "reason": "needs 9 GB of 8 GB"}]
        result = _result.told({"result": "", "figures": figures})
        self.assertEqual(result.ruled_out, [nwt.RuledOut(8, "memory", "needs 9 GB of 8 GB")])
        self.assertEqual(result.trials[0].p99, 0.009)

    def test_an_iteration_goes_on_across_killed_programs(self):
        with pictures(shuffle=True, batch_size=1, train=True) as loader, pictures(shuffle=True, batch_size=1, train=True, prefetch=2) as other:
            whole, got = [digest(batch) for batch in epoch(loader, 1)], []
            with self.assertLogs("nwt", "WARNING") as logged:
                for batch in epoch(other, 1):
                    got.append(digest(batch))
                    if len(got) in (3, 4, 11):
                        other._program.process.kill()
            self.assertEqual(got, whole)
            self.assertGreaterEqual(len(logged.output), 2)
            self.assertIn("starting it again: nwt-serve has ended, by signal 9", logged.output[0])

    def test_where_there_are_no_such_sockets_batches_come_through_pipes(self):
        with pictures(shuffle=True, train=True) as loader:
            whole, files = [digest(batch) for batch in epoch(loader, 1)], loader.files
        with mock.patch("nwt._program.sys", mock.Mock(platform="win32", modules={})), pictures(shuffle=True, train=True) as loader:
            self.assertEqual([digest(batch) for batch in epoch(loader, 1)], whole)
            self.assertEqual(loader.files, files)
            process = loader._program.process
            batches = iter(epoch(loader, 1))
            next(batches)
            process.kill()
            self.assertEqual([digest(batch) for batch in batches], whole[1:])

    def test_interrupts_lose_nothing(self):
        with pictures(shuffle=True, batch_size=1) as loader:
            whole = [digest(batch) for batch in epoch(loader, 1)]
            self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, signal.default_int_handler))
            interrupts, process = 0, loader._program.process
            for n in range(200):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + n % 40))
                    for _ in range(100):
                        for _ in epoch(loader, 0):
                            pass
                except KeyboardInterrupt:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.assertEqual(interrupts, 200)
            self.assertEqual([digest(batch) for batch in epoch(loader, 1)], whole)
            self.assertIs(loader._program.process, process)

    def test_it_is_started_again_in_the_folder_where_it_began(self):
        before, at = os.getcwd(), program.pictures()
        self.addCleanup(os.chdir, before)
        os.chdir(at.parent)
        with nwt.ImageFolder(at.name, batch_size=1, size=32, program=program.program()) as loader, self.assertLogs("nwt"):
            batches = iter(loader)
            next(batches)
            os.chdir("/")
            loader._program.process.kill()
            self.assertEqual(len(list(batches)), 19)

    def test_it_ends_with_a_loader_that_nobody_has_any_more(self):
        gc.disable()
        self.addCleanup(gc.enable)
        loader = pictures()
        next(iter(loader))
        process = loader._program.process
        del loader
        self.assertIsNotNone(process.returncode)

    def test_a_traceback_doesnt_keep_it(self):
        """A notebook's, whose cells are code of a module."""
        gc.disable()
        self.addCleanup(gc.enable)
        names = {"pictures": pictures}
        kept = None
        try:
            exec("loader = pictures()\nloader.load_state_dict({'epoch': 0, 'samples': 99})\nfor batch in loader: pass", names)  # noqa: S102
        except nwt.Error as error:
            kept = error
        process = names["loader"]._program.process
        names.clear()
        self.assertTrue(kept.__traceback__)
        self.assertIsNotNone(process.returncode)

    def test_nothing_is_said_while_python_ends(self):
        for end in ("", "raise RuntimeError('mine')", "signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT)"):
            text = (
                "import os, signal, nwt\n"
                f"loader = nwt.ImageFolder({str(program.pictures())!r}, batch_size=4, size=32, program={program.program()!r})\n"
                f"class Model:\n    def __init__(self): self.loader, self.me = loader, self\nmodel = Model()\nfor batch in loader:\n    {end or 'break'}"
            )
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            said = subprocess.run([sys.executable, "-c", text], check=False, stderr=subprocess.PIPE, text=True, env=env).stderr
            self.assertNotIn("Exception ignored", said)
            self.assertEqual(said.count("Traceback"), 1 if end else 0, said)

    def test_closing_it_ends_a_thread_that_waits(self):
        loader, got = pictures(batch_size=1), []
        batches = iter(loader)
        next(batches)

        def take():
            try:
                list(batches)
            except nwt.Error as error:
                got.append(str(error))

        loader._program.process.send_signal(signal.SIGSTOP)
        thread = threading.Thread(target=take)
        thread.start()
        time.sleep(0.2)  # by then it waits
        threading.Timer(0.1, loader._program.process.send_signal, (signal.SIGCONT,)).start()
        with self.assertNoLogs("nwt"):
            loader.close()
            thread.join()
        self.assertEqual(got, ["the loader is closed"])

    def test_one_whose_end_of_the_connection_a_fork_has_is_started_again(self):
        pair, kept = socket.socketpair, []

        def both():
            ours, theirs = pair()
            kept.append(theirs.dup())
            return ours, theirs

        with mock.patch("socket.socketpair", both), pictures(batch_size=1, patience=4) as loader, self.assertLogs("nwt"):
            batches = iter(loader)
            next(batches)
            loader._program.process.kill()
            self.assertEqual(len(list(batches)), 19)
        for one in kept:
            one.close()

    def test_one_that_cant_be_started_again_is_told(self):
        at = program.folder()
        for i in range(40):
            program.png(at / "a" / f"{i}.png", 40, 40, i)
        with nwt.ImageFolder(at, batch_size=1, size=32, program=program.program()) as loader:
            batches = iter(loader)
            next(batches)
            at.rename(at.with_name("moved-" + at.name))
            os.kill(loader._program.process.pid, signal.SIGKILL)
            with self.assertRaisesRegex(nwt.Error, "nwt-serve can't be started again: .Errno 2. No such file"), self.assertLogs("nwt"):
                list(batches)
        at.with_name("moved-" + at.name).rename(at)

    def test_one_that_dies_three_times_without_a_batch_is_told(self):
        for taken in (0, 3):
            with self.subTest(taken), pictures(batch_size=1, prefetch=1) as loader, self.assertLogs("nwt"):
                own, batches, starts = loader._program, iter(loader), []
                for _ in range(taken):
                    next(batches)

                def start(came, real=own.start, own=own, starts=starts):
                    starts.append(real(came))
                    own.process.kill()
                    own.process.wait()
                    return starts[-1]

                loader._transport._start = start
                own.process.kill()
                own.process.wait()
                with self.assertRaisesRegex(nwt.Error, "by signal 9 .it was started 3 times without loading a batch"):
                    list(batches)
                self.assertEqual(len(starts), 3 if taken else 2)

    def test_any_batch_can_be_loaded_again(self):
        with pictures(shuffle=True, train=True, seed=3) as loader:
            whole = [[(digest(batch), batch["index"].tolist()) for batch in epoch(loader, e)] for e in (0, 7)]
            batches = iter(loader)
            next(batches)
            for e, one in zip((0, 7), whole, strict=True):
                for number, (of, index) in enumerate(one):
                    self.assertEqual((digest(loader.batch(e, number)), loader.indices(e, number)), (of, index))
            self.assertEqual(len(list(batches)), 4, "the iteration goes on")
            with self.assertRaisesRegex(ValueError, "number=5: must be from 0 to 4"):
                loader.indices(0, 5)
        listed = sorted(program.pictures().glob("*/*.png"))
        with nwt.Images(listed, labels=range(100, 120), batch_size=4, size=32, shuffle=True, program=program.program()) as loader:
            self.assertEqual(loader.batch(1, 2)["label"].tolist(), [100 + i for i in loader.indices(1, 2)])

    def test_a_loader_says_what_it_is(self):
        with pictures() as loader:
            self.assertEqual(
                repr(loader),
                f"nwt.ImageFolder({str(program.pictures())!r}: 20 samples, 5 batches of 4, 2 workers)".replace("'/", "PosixPath('/", 1).replace("':", "'):"),
            )
        for workers, many in ((None, len(os.sched_getaffinity(0))), (0, 1), (3, 3)):
            with pictures(num_workers=workers) as loader:
                self.assertEqual(loader.num_workers, many)
        names = inspect.signature(nwt.ImageFolder).parameters
        self.assertEqual((list(names)[:2], names["batch_size"].default, names["normalize"].default), (["root", "classes"], 32, None))
        self.assertNotIn("normalize", inspect.signature(nwt.Tokens).parameters)
        self.assertEqual((nwt.ImageFolder.__module__, repr(nwt.Error)), ("nwt", "<class 'nwt.Error'>"))
        self.assertEqual({name for name in vars(nwt) if not name.startswith("_")} - set(nwt.__all__), {"torch"} & set(vars(nwt)))
        with self.assertRaisesRegex(AttributeError, "has no attribute 'Dataset': write nwt.DataLoader, or nwt.torch.DataLoader for tensors"):
            _ = nwt.Dataset
        with self.assertRaisesRegex(TypeError, "no argument 'batchsize': did you mean 'batch_size'?"):
            pictures(batchsize=3)

    def test_a_pickled_loader_opens_anew_in_another_process(self):
        with pictures(shuffle=True) as loader:
            next(iter(loader))
            text = pickle.dumps(loader)
            said = subprocess.run(
                [sys.executable, "-c", "import pickle, sys\nwith pickle.load(sys.stdin.buffer) as l: print([b['index'].tolist() for b in l])"],
                input=text, stdout=subprocess.PIPE, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip
            loader.load_state_dict(loader.state_dict())
            self.assertEqual(json.loads(said.stdout), [batch["index"].tolist() for batch in loader])

    def test_the_version_is_the_programs(self):
        said = subprocess.run([program.program(), "-version"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.strip(), nwt.__version__)

    @unittest.skipUnless(pathlib.Path("/proc").exists(), "there is no /proc")
    def test_nothing_is_left_when_this_process_ends_or_is_killed(self):
        for end in (
            "",
            "sys.exit(1)",
            "os.kill(os.getpid(), signal.SIGKILL)",
            "if os.fork(): time.sleep(0.5)",
            "if os.fork(): os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(15)",
        ):
            text = (
                "import os, signal, sys, time, nwt\n"
                f"loader = nwt.ImageFolder({str(program.pictures())!r}, batch_size=4, size=32, program={program.program()!r})\n"
                f"next(iter(loader)); print(loader._program.process.pid, flush=True)\n{end}"
            )
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=env) as child:
                pid = child.stdout.readline().strip()
            self.assertTrue(ends(pid), end)


if __name__ == "__main__":
    unittest.main()
