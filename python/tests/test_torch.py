"""What holds with PyTorch, where that is installed. .ci/run -all installs it."""

import importlib.util
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
import typing
import unittest
from unittest import mock

import fake
import numpy as np
import program
import test_own

if not importlib.util.find_spec("torch"):
    raise unittest.SkipTest("PyTorch isn't installed")

import torch
import torch.utils.data

import nwt.torch


def pictures(**kwargs):
    return nwt.ImageFolder(program.pictures(), batch_size=4, size=32, num_workers=2, program=program.program(), **kwargs)


class Tensors(unittest.TestCase):
    def test_a_tensor_is_the_batchs_memory_and_may_be_kept(self):
        with pictures() as loader:
            kept, copies = [], []
            for batch in loader:
                tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
                for name, tensor in tensors.items():
                    self.assertEqual(tensor.data_ptr(), batch[name].__array_interface__["data"][0])
                kept.append(tensors)
                copies.append({name: array.copy() for name, array in batch.items()})
            del batch
        for tensors, copy in zip(kept, copies, strict=True):
            for name, tensor in tensors.items():
                np.testing.assert_array_equal(tensor.numpy(), copy[name])

    def test_tensors_come_as_a_dict_a_tuple_or_under_other_names(self):
        with pictures() as loader:
            for batch in nwt.torch.DataLoader(loader):
                self.assertEqual(
                    [(name, t.dtype, len(t)) for name, t in batch.items()], [("image", torch.uint8, 4), ("label", torch.int64, 4), ("index", torch.int64, 4)]
                )
            for images, labels in nwt.torch.DataLoader(loader, fields=("image", "label")):
                self.assertEqual((tuple(images.shape), labels.dtype), ((4, 3, 32, 32), torch.int64))
            for batch in nwt.torch.DataLoader(loader, fields={"pixel_values": "image", "labels": "label"}, device="cpu"):
                self.assertEqual(list(batch), ["pixel_values", "labels"])
            with self.assertRaisesRegex(ValueError, "a batch has image, label, index"):
                next(iter(nwt.torch.DataLoader(loader, fields=("class",))))

    def test_one_batch_comes_as_those_of_an_iteration(self):
        for options in {}, {"fields": ("index", "label")}, {"fields": {"i": "index"}, "device": "meta"}:
            loader = nwt.torch.DataLoader(fake.loader(rank=1, world_size=2), **options)
            batches = iter(loader)
            next(batches)
            one, state = loader.batch(0, 1), loader.state_dict()
            self.assertEqual(str(one), str(next(batches)))
            self.assertEqual(state["batches"], 1, "the iteration goes on unchanged")

    def test_bits_of_bfloat16_are_tensors_of_it(self):
        with pictures(dtype="bfloat16") as bits, pictures(dtype="float32") as floats:
            image, want = (next(iter(nwt.torch.DataLoader(loader)))["image"] for loader in (bits, floats))
            self.assertEqual(image.dtype, torch.bfloat16)
            torch.testing.assert_close(image.float(), want, atol=0.003, rtol=0.01)

    def test_it_is_a_data_loader_of_torch(self):
        loader = nwt.torch.DataLoader(fake.loader(), pin_memory=True)
        self.assertIsInstance(loader, torch.utils.data.DataLoader)
        self.assertTrue({"batch", "stats", "remaining"} <= set(dir(loader)))
        self.assertEqual(
            (len(loader), len(loader.dataset), loader.dataset.classes, loader.batch_size, loader.drop_last, loader.pin_memory, loader.num_workers),
            (3, 10, ["cat", "dog"], 4, False, True, 3),
        )
        with self.assertRaisesRegex(TypeError, "iterate over the nwt.torch.DataLoader"):
            iter(loader.dataset)

    def test_with_closes_the_loader_that_it_was_given(self):
        train = fake.loader()
        with nwt.torch.DataLoader(train) as loader:
            self.assertEqual((type(loader), len(list(loader))), (nwt.torch.DataLoader, 3))
        for closed in loader, train:
            with self.assertRaisesRegex(nwt.Error, "closed"):
                next(iter(closed))

    def test_what_is_decided_elsewhere_says_where(self):
        for text, kwargs in (
            ("no argument 'sampler': shuffle and seed decide the order", {"sampler": [0]}),
            ("no argument 'num_workers': nwt.Loader has it, or decides it", {"num_workers": 4}),
            ("no argument 'shuffle': nwt.Loader has it, or decides it", {"shuffle": True}),
            ("no argument 'collate_fn': samples are loaded straight into their batch", {"collate_fn": len}),
        ):
            with self.subTest(text), self.assertRaisesRegex(TypeError, text):
                nwt.torch.DataLoader(fake.loader(), **kwargs)
        with self.assertRaisesRegex(TypeError, r"write for batch in loader, and nwt.torch.DataLoader\(loader\)"):
            next(iter(torch.utils.data.DataLoader(fake.loader())))


def indices(batches):
    return [batch["index"].tolist() for batch in batches]


class Package(unittest.TestCase):
    def test_it_needs_no_import_of_its_own(self):
        text = "import nwt; print(nwt.torch.DataLoader, hasattr(nwt, 'jax'))"
        said = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        )
        self.assertEqual(said.stdout, "<class 'nwt.torch.DataLoader'> False\n")

    def test_editors_know_the_options_of_ones_own_dataset(self):
        own, both = (set(inspect.signature(kind).parameters) for kind in (nwt.DataLoader, nwt.torch.DataLoader))
        self.assertTrue(own < both, own - both)
        self.assertEqual(nwt.torch.__all__, ["DataLoader"])

    def test_editors_and_help_know_what_a_loader_has(self):
        with own(test_own.Birds(4)) as both:
            has = {name for name in vars(both.loader) if not name.startswith("_")}
            for kind, names in (nwt.DataLoader, has), (nwt.torch.DataLoader, has - vars(both).keys()):
                declared = {name for one in kind.__mro__ for name in inspect.get_annotations(one)}
                self.assertEqual({name for name in names if name not in declared or not re.search(rf"\b{name}\b", kind.__doc__)}, set())
            self.assertIn("num_samples", nwt.Loader.__doc__)
            self.assertNotIn("unknown", pydoc.render_doc(nwt.Loader))
            self.assertEqual(repr(both), "nwt.torch.DataLoader(Birds: 4 samples, 4 batches of 1, 1 worker)")
            self.assertEqual(repr(both.loader), "nwt.DataLoader(Birds: 4 samples, 4 batches of 1, 1 worker)")


class States(unittest.TestCase):
    def test_a_rest_counts_the_batches_before_it(self):
        loader = nwt.torch.DataLoader(fake.loader())
        iter(loader)
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        self.assertEqual(state, {"epoch": 0, "samples": 8, "order": "o", "batches": 2})
        for world, length in ((1, 3), (2, 3)):
            other = nwt.torch.DataLoader(fake.loader(rank=0, world_size=world))
            other.load_state_dict(state)
            self.assertEqual(len(other), length)
            other.set_epoch(7)  # of a trainer that counts steps
            self.assertEqual(indices(other), [[8, 9][: 3 - world]])
            self.assertEqual((len(other), other.state_dict()), (-(-10 // (4 * world)), {"epoch": 1, "samples": 0, "batches": 0}))

    def test_a_pickled_one_keeps_its_number_of_batches(self):
        loader = nwt.torch.DataLoader(fake.loader(), fields=("index",))
        batches = iter(loader)
        with mock.patch.object(nwt.Loader, "_open", lambda self: fake.Transport()):
            for n in range(1, 4):
                next(batches)
                other = pickle.loads(pickle.dumps(loader))
                self.assertEqual((other.state_dict(), len(other)), (loader.state_dict(), 3))
                next(iter(other))
                self.assertEqual(other.state_dict()["batches"], (2, 0, 1)[n - 1])

    def test_the_number_of_batches_that_remain_is_told(self):
        loader = nwt.torch.DataLoader(fake.loader())
        self.assertEqual(loader.remaining(2), 6)
        next(iter(loader))
        self.assertEqual(loader.remaining(2), 5)
        other = nwt.torch.DataLoader(fake.loader(rank=0, world_size=2))
        other.load_state_dict(loader.state_dict())
        self.assertEqual((other.remaining(2), other.remaining(0)), (1 + 2, 0))
        self.assertEqual(len(list(other)), 1)
        self.assertEqual((len(other), other.remaining(2)), (2, 2))

    def test_set_epoch_chooses_and_each_iteration_is_the_next(self):
        loader = nwt.torch.DataLoader(fake.loader())
        loader.set_epoch(5)
        list(loader)
        self.assertEqual(loader.state_dict()["epoch"], 6)
        next(iter(loader))
        loader.set_epoch(8)
        self.assertEqual(loader.state_dict(), {"epoch": 8, "samples": 0, "batches": 0}, "the batch before doesn't count")
        with self.assertRaisesRegex(ValueError, "state="):
            loader.load_state_dict({"model": 1})

    def test_a_rest_that_a_trainer_leaves_since_it_counts_too_few_goes_on(self):
        whole = nwt.torch.DataLoader(fake.loader(samples=40))
        batches = iter(whole)
        seen = [next(batches)["index"] for _ in range(4)]
        loaders = [nwt.torch.DataLoader(fake.loader(samples=40, rank=rank, world_size=2)) for rank in range(2)]
        for loader in loaders:
            length = len(loader)  # before it is resumed
            loader.load_state_dict(whole.state_dict())
            seen += [batch["index"] for _, batch in zip(range(length - 4), loader, strict=False)]
        seen += [batch["index"] for loader in loaders for batch in loader]
        self.assertEqual(sorted(torch.cat(seen).tolist()), list(range(40)))


class Processes(unittest.TestCase):
    def test_the_rank_is_that_of_torch_unless_another_was_given(self):
        early = fake.loader()
        with (
            mock.patch("torch.distributed.is_initialized", return_value=True),
            mock.patch("torch.distributed.get_rank", return_value=1),
            mock.patch("torch.distributed.get_world_size", return_value=2),
        ):
            loader = nwt.torch.DataLoader(fake.loader())
            self.assertEqual((len(loader), indices(loader)), (2, [[4, 5, 6, 7], [9]]))
            self.assertEqual(nwt.torch.DataLoader(fake.loader()).batch(0, 0)["index"].tolist(), [4, 5, 6, 7])
            self.assertEqual((len(early), fake.indices(early), fake.indices(fake.loader())), (2, [[4, 5, 6, 7], [9]], [[4, 5, 6, 7], [9]]))
            self.assertEqual(indices(nwt.torch.DataLoader(fake.loader(rank=0, world_size=1))), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])

    def test_a_worker_of_torch_has_a_loader_of_its_own(self):
        class Batches(torch.utils.data.IterableDataset):
            def __init__(self, loader):
                self.loader = loader

            def __iter__(self):
                for batch in pickle.loads(pickle.dumps(self.loader)):
                    yield {name: torch.from_numpy(array) for name, array in batch.items()}

        with pictures(shuffle=True) as loader:
            want = indices(loader)
            loader.set_epoch(0)
            for workers in (0, 1):
                self.assertEqual(indices(torch.utils.data.DataLoader(Batches(loader), batch_size=None, num_workers=workers)), want)


class Point(typing.NamedTuple):
    x: float
    y: np.ndarray


class Nested(torch.utils.data.Dataset):
    """As a PyTorch user writes it."""

    name = "nested"

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {"pair": (torch.full((2,), i), np.float32(i)), "point": Point(i / 2, np.ones(2)), "list": [i, True], "name": f"bird {i}", 7: 1 if i % 2 else 0.5}


class Varying(Nested):
    def __getitem__(self, i):
        return torch.arange(i % 3 + 1), i


class Reversed(torch.utils.data.Sampler):
    """A sampler that nwt doesn't know: it draws by torch's own generator."""

    def __init__(self, n, extra=0):
        self.n, self.taken, self.extra = n, 0, extra

    def __len__(self):
        return self.n

    def __iter__(self):
        self.taken += 1
        yield from torch.randperm(self.n + self.extra * (self.taken > 1)).flip(0)


def number_of_process(number):
    torch.utils.data.get_worker_info().dataset.process = number  # a copy of it


class Worker(test_own.Labelled):
    """Samples that say how many workers there are."""

    def __getitem__(self, i):
        return torch.utils.data.get_worker_info().num_workers or -1


def worker(picture):
    return np.array([torch.utils.data.get_worker_info().num_workers or -1])


def no_process(number):
    raise ValueError("no database")


def own(dataset, *args, **options):
    return nwt.torch.DataLoader(dataset, *args, program=program.program(), **options)


def numbers(loader):
    return [i for batch in loader for i in batch[1].tolist()]


def seconds(samples):
    return [sample[1] for sample in samples], torch.tensor([sample[0].sum() for sample in samples])


class OwnDatasets(unittest.TestCase):
    def alike(self, one, other):
        self.assertIs(type(one), type(other))
        if isinstance(one, torch.Tensor):
            self.assertEqual(one.dtype, other.dtype)
            self.assertTrue(torch.equal(one, other))
        elif isinstance(one, (dict, list, tuple)):
            self.assertEqual(len(one), len(other))
            for key in one if isinstance(one, dict) else range(len(one)):
                self.alike(one[key], other[key])
        else:
            self.assertEqual(one, other)

    def test_a_batch_is_what_torchs_dataloader_gives(self):
        args = Nested(), 4, False, None, None, 0
        with own(*args) as loader:
            for ours, theirs in zip(loader, torch.utils.data.DataLoader(*args), strict=True):
                self.alike(ours, theirs)
            self.alike(loader.batch(0, 1), ours)
        with own(Varying(), 4, ragged={"0": 3}) as loader:
            arrays, lengths, numbers = next(iter(loader))
        self.assertEqual((arrays[1].tolist(), lengths.tolist(), numbers.tolist()), ([0, 1, 0], [1, 2, 3, 1], [0, 1, 2, 3]))

    def test_each_epoch_is_another_shuffle_and_a_state_goes_on_in_it(self):
        with own(test_own.Labelled(40), batch_size=8, shuffle=True) as loader:
            first, batches = numbers(loader), iter(loader)
            seen = next(batches)[1].tolist()
            again = pickle.loads(pickle.dumps(loader))
            with again:
                self.assertEqual(next(iter(again))[1].tolist(), next(batches)[1].tolist())
            state = loader.state_dict()
        with own(test_own.Labelled(40), batch_size=4, shuffle=True, num_workers=2) as other:
            other.load_state_dict({**state, "samples": 8})
            rest = numbers(other)
        self.assertEqual((sorted(first), sorted(seen + rest)), (list(range(40)),) * 2)
        self.assertNotEqual(first, seen + rest)

    def test_parts_and_chains_of_datasets_are_datasets(self):
        data, birds = torch.utils.data, test_own.Labelled()
        dataset = data.ConcatDataset([*data.random_split(birds, [90, 10], torch.Generator().manual_seed(0)), data.Subset(birds, range(5, 20))])
        with own(dataset, batch_size=32) as loader:
            self.assertEqual(numbers(loader), [dataset[i][1] for i in range(len(dataset))])
            self.assertIs(loader.source, dataset)
            self.assertEqual((loader.bad, loader.indices(0, 1)[:3]), (0, [32, 33, 34]))
            with self.assertRaisesRegex(AttributeError, "has no 'sources'"):
                _ = loader.sources

    def test_the_dataset_is_iterable_for_trainers_and_has_what_the_users_has(self):
        with own(test_own.Labelled(), worker_init_fn=number_of_process) as loader:
            self.assertIsInstance(loader.dataset, torch.utils.data.IterableDataset)
            self.assertEqual((len(loader), loader.batch_size, len(loader.dataset), loader.dataset.n, loader.dataset[3][1]), (100, 1, 100, 100, 3))
            self.assertGreaterEqual(next(iter(loader))[2].item(), 0, "worker_init_fn was called")
            with self.assertRaisesRegex(AttributeError, "nothing"):
                _ = loader.dataset.nothing

    def test_a_process_knows_how_many_there_are_unless_nwt_chooses(self):
        for want, options in (3, {"num_workers": 3}), (1, {}), (-1, {"num_workers": None}), (-1, {"num_workers": 2, "tune": True}):
            with self.subTest(options), mock.patch.dict(os.environ, XDG_CACHE_HOME=str(program.folder())), own(Worker(8), 8, **options) as loader:
                self.assertEqual(loader.batch(0, 0).tolist(), [want] * 8)
        with pictures(transform=worker) as loader:
            self.assertEqual(next(iter(loader))["image"].tolist(), [[2]] * 4)

    def test_samplers_of_torch_become_orders(self):
        data, birds, generator = torch.utils.data, test_own.Labelled(40), torch.Generator().manual_seed(5)
        with own(birds, batch_size=8, shuffle=True, generator=generator) as loader:
            want = numbers(loader)
        for sampler, check in (
            (data.SequentialSampler(birds), lambda seen: seen == list(range(40))),
            (data.RandomSampler(birds, generator=generator), lambda seen: seen == want),
            (data.RandomSampler(birds, replacement=True, num_samples=200), lambda seen: len(seen) == 200 and len(set(seen)) > 35),
            (data.RandomSampler(birds, num_samples=50), lambda seen: len(seen) == 50 and len(set(seen[:40])) == 40),
            (data.SubsetRandomSampler([3, 5, 8, 13]), lambda seen: sorted(seen) == [3, 5, 8, 13]),
            (data.WeightedRandomSampler([0.0] * 20 + [1.0] * 10, 64), lambda seen: len(seen) == 64 and set(seen) <= set(range(20, 30))),
            (data.WeightedRandomSampler([1.0] * 40, 30, replacement=False), lambda seen: len(set(seen)) == len(seen) == 30),
        ):
            with self.subTest(sampler), own(birds, batch_size=8, sampler=sampler) as loader:
                seen = numbers(loader)
                self.assertTrue(check(seen), seen)

    def test_a_distributed_sampler_becomes_a_rank_and_sets_the_epoch(self):
        seen = []
        for rank in range(2):
            sampler = torch.utils.data.DistributedSampler(range(40), 2, rank, seed=9)
            with own(test_own.Labelled(40), batch_size=8, sampler=sampler) as loader:
                self.assertEqual((loader.loader.rank, loader.loader.world_size), (rank, 2))
                sampler.set_epoch(3)
                seen += numbers(loader)
                self.assertEqual(loader.state_dict()["epoch"], 4)
        self.assertEqual(sorted(seen), list(range(40)))

    def test_a_distributed_sampler_overrules_nothing_that_was_given(self):
        birds = test_own.Labelled(40)
        sampler = torch.utils.data.DistributedSampler(birds, 2, 1, seed=9)
        with (
            own(birds, sampler=sampler) as of_sampler,
            own(birds, sampler=sampler, seed=3, rank=1) as given,
            own(birds, shuffle=True, seed=3, rank=1, world_size=2) as want,
        ):
            self.assertEqual(given.indices(0, 0), want.indices(0, 0))
            self.assertNotEqual(given.indices(0, 0), of_sampler.indices(0, 0))
        for error, place in (
            ("rank=0: must be the DistributedSampler's, 1", {"rank": 0}),
            ("world_size=4: must be the DistributedSampler's, 2", {"rank": 1, "world_size": 4}),
        ):
            with self.subTest(error), self.assertRaisesRegex(ValueError, error):
                own(birds, sampler=sampler, **place)

    def test_a_distributed_samplers_drop_last_isnt_lost_silently(self):
        for n, drop_last, warns in (9, False, True), (9, True, False), (8, False, False):
            sampler = torch.utils.data.DistributedSampler(range(n), 2, 0, drop_last=True)
            with self.subTest(n=n, drop_last=drop_last), mock.patch.object(nwt.torch.logger, "warning") as warning:
                with own(test_own.Labelled(n), batch_size=4, sampler=sampler, drop_last=drop_last) as loader:
                    seen = [numbers(loader)]
                with own(test_own.Labelled(n), batch_size=4, shuffle=True, rank=1, world_size=2, drop_last=drop_last) as loader:
                    seen.append(numbers(loader))
                self.assertEqual((len(seen[0]) != len(seen[1]), "drop_last has no effect" in str(warning.call_args)), (warns, warns))

    def test_another_samplers_list_is_taken_once_per_epoch_and_known_again(self):
        sampler, birds = Reversed(40), test_own.Labelled(40)
        with own(birds, batch_size=8, sampler=sampler) as loader:
            self.assertEqual(sampler.taken, 0)
            before = torch.get_rng_state()
            first = numbers(loader)
            self.assertTrue(torch.equal(before, torch.get_rng_state()), "the program's own random numbers go on")
            self.assertEqual((sampler.taken, sorted(first)), (1, list(range(40))), "nothing is asked ahead past its epoch")
            batches = iter(loader)
            seen = next(batches)[1].tolist()
            state = loader.state_dict()
            self.assertEqual(state["list"][:2], [0, 1])
            self.assertEqual(loader.loader.indices(1, 0), seen)
            with self.assertRaisesRegex(ValueError, "sampler Reversed gives indices only as an epoch begins: of epoch 0"):
                loader.loader.indices(0, 0)
            rest = [i for batch in batches for i in batch[1].tolist()]
            self.assertEqual((sorted(seen + rest), sampler.taken), (list(range(40)), 2))
        with own(birds, batch_size=8, sampler=Reversed(40)) as other:  # without a generator it draws alike
            other.load_state_dict(state)
            self.assertEqual((other.state_dict(), len(other)), (state, 5))
            self.assertEqual(numbers(other), rest)
        numbered = Reversed(40)
        numbered.generator = np.random.default_rng(1)  # the sampler's own affair
        with own(birds, batch_size=8, sampler=numbered) as other:
            self.assertEqual(sorted(numbers(other)), list(range(40)))
        with own(birds, batch_size=8, sampler=list(range(40))) as other:
            other.load_state_dict(state)
            with self.assertRaisesRegex(nwt.Error, "sampler list gives other indices in epoch 1"):
                next(iter(other))
        with own(birds, batch_size=8, sampler=Reversed(40, extra=1), rank=1, world_size=2) as other:
            with self.assertRaisesRegex(nwt.Error, "on 1 ranks, and this is one of 2"):
                other.load_state_dict(state)
            self.assertEqual(len(numbers(other)), 40)
            with self.assertRaisesRegex(ValueError, "sampler Reversed, epoch 1: there are 41 indices, and 40 in other epochs"):
                next(iter(other))

    def test_a_collate_fn_combines_samples_here(self):
        with own(test_own.Labelled(), batch_size=4, collate_fn=seconds, device="cpu") as loader:
            numbers, sums = next(iter(loader))
            self.assertEqual((numbers, sums.tolist()), ([0, 1, 2, 3], [0, 6, 12, 18]))
            self.assertIs(loader.collate_fn, seconds)

    def test_what_has_no_meaning_here_is_said(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(())

        for error, dataset, options in (
            ("make __getitem__ open or read its part number i", Endless(), {}),
            ("no database", test_own.Birds(), {"worker_init_fn": no_process}),
            ("lengths=", test_own.Birds(), {"batch_sampler": [[0]]}),
            ("batch_size=1 and collate_fn", test_own.Birds(), {"batch_size": None}),
            ("sampler: it decides the order alone", test_own.Birds(), {"sampler": [0], "shuffle": True}),
            ("must have __len__", test_own.Birds(), {"sampler": iter([0])}),
            ("gives no index", test_own.Birds(), {"sampler": torch.utils.data.SubsetRandomSampler([])}),
            ("has no argument 'shufle'", test_own.Birds(), {"shufle": True}),
        ):
            with self.subTest(error), self.assertRaisesRegex((TypeError, ValueError, nwt.Error), error):
                own(dataset, **options)
        other = {"timeout": 60, "multiprocessing_context": "spawn", "persistent_workers": True}
        with self.assertLogs("nwt", "INFO") as logged, own(test_own.Birds(), num_workers=1, prefetch_factor=3, **other) as loader:
            self.assertEqual(loader.loader._prefetch, 3)
        self.assertIn("multiprocessing_context: without effect", "".join(logged.output))
        self.assertIn("timeout=60 bounds each sample here, and patience= the wait for a batch", "".join(logged.output))


class Driver:
    """Stands for CUDA's: what is registered, and events that are over once somebody waits for them."""

    def __init__(self):
        self.registered, self.waited, self.streams = {}, 0, set()

    def __call__(self):
        return self

    def cudaHostRegister(self, address, size, flags):
        self.registered[address] = size
        return 0

    def cudaHostUnregister(self, address):
        del self.registered[address]

    def record(self, stream):
        self.streams.add(stream)

    def query(self):
        return False

    def synchronize(self):
        self.waited += 1


class Pinned(unittest.TestCase):
    def test_shared_memory_is_registered_once_and_kept_until_it_is_copied(self):
        driver = Driver()
        inner = fake.loader(samples=40)
        memory = np.zeros(1 << 16, np.uint8)
        ask, calls = fake.Asking.ask, []

        def asked(asking, ticket):
            take = ask(asking, ticket)

            def taken():
                arrays, *rest = take()
                if not calls:
                    calls.append(inner._mapped(memory))
                for name, array in arrays.items():
                    arrays[name] = np.ndarray(array.shape, array.dtype, memory)
                return arrays, *rest

            return taken

        with (
            mock.patch("torch.cuda.is_available", return_value=True),
            mock.patch("torch.cuda.cudart", driver),
            mock.patch("torch.cuda.Event", driver),
            mock.patch("torch.cuda.current_stream", lambda device: f"the stream of {device}"),
            mock.patch.object(torch.Tensor, "to", lambda tensor, device, non_blocking: tensor),
            mock.patch.object(fake.Asking, "ask", asked),
            mock.patch.object(torch.Tensor, "pin_memory", side_effect=AssertionError("copied")),
        ):
            loader = nwt.torch.DataLoader(inner, pin_memory=True, device="cuda:1")
            batches = iter(loader)
            next(batches)
            self.assertEqual(driver.registered, {memory.ctypes.data: 1 << 16})
            loader.batch(0, 5)
            self.assertEqual(driver.waited, 1, "one batch is there when it is returned")
            driver.waited = 0
            next(batches), next(batches), next(batches)
            self.assertEqual(driver.waited, 1, "three batches are on their way: the oldest is waited for")
            self.assertEqual(len(list(batches)), 6)
            self.assertEqual(driver.waited, 10)
            self.assertEqual(driver.streams, {"the stream of cuda:1"}, "the copies are there, whatever device is current")
            calls[0]()
            self.assertEqual(driver.registered, {})


if __name__ == "__main__":
    unittest.main()
