"""What holds with PyTorch, where that is installed. .ci/run -all installs it."""

import importlib.util
import json
import os
import unittest

import numpy as np

import nwt

GIVEN = json.loads(os.environ["NWT_TEST"])


def drawing():
    return nwt.Loader([GIVEN["shared"]])


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch isn't installed")
class Tensors(unittest.TestCase):
    def test_a_tensor_is_the_batchs_memory_and_may_be_kept(self):
        import torch

        with drawing() as loader:
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

    def test_bytes_are_normalized_where_they_are_used(self):
        import torch

        with nwt.ImageFolder(GIVEN["images"], batch_size=4, size=32, workers=2, program=GIVEN["program"]) as loader:
            batch = next(iter(loader))
            images = torch.from_numpy(batch["image"]).float().div_(255)
            self.assertEqual((tuple(images.shape), images.dtype), ((4, 3, 32, 32), torch.float32))
            self.assertTrue(0 <= images.min() < images.max() <= 1)
            self.assertEqual(torch.from_numpy(batch["class"]).dtype, torch.int64)

    def test_a_data_loader_takes_its_batches_in_this_process_and_in_another(self):
        import torch.utils.data

        class Batches(torch.utils.data.IterableDataset):
            def __iter__(self):
                with drawing() as loader:
                    for batch in loader:
                        yield {name: torch.from_numpy(array) for name, array in batch.items()}

        with drawing() as loader:
            want = [batch["where"].tolist() for batch in loader]
        for workers in (0, 1):
            batches = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=workers)
            self.assertEqual([batch["where"].tolist() for batch in batches], want)
