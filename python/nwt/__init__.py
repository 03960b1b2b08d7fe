"""Batches of nwt as NumPy arrays, each sample exactly once and in order.

    import nwt
    train = nwt.ImageFolder("data/train", batch_size=256, size=224, train=True, normalize=True, shuffle=True, seed=42)
    for batch in train:
        batch["image"], batch["label"], batch["index"]  # float32 [256, 3, 224, 224], int64 [256], int64 [256]

nwt.torch.DataLoader takes your own dataset as torch's DataLoader does. It also takes a loader such
as train. Its batches are tensors. nwt.DataLoader loads your own dataset without torch, as arrays.
nwt.Images, nwt.Files, nwt.WebDataset and nwt.Tokens load other data. nwt.Loader asks
servers on other hosts.
"""

import importlib as _importlib
import typing as _typing

from ._beside import Files, ImageFolder, Images, Tokens, WebDataset
from ._loader import Loader, Stats
from ._own import DataLoader
from ._result import Result, RuledOut, Trial
from ._wire import Error, SampleError, State

__version__ = "0.1.0"
__all__ = [
    "DataLoader", "Error", "Files", "ImageFolder", "Images", "Loader", "Result", "RuledOut",
    "SampleError", "State", "Stats", "Tokens", "Trial", "WebDataset",
]  # fmt: skip

for _name in __all__:
    globals()[_name].__module__ = "nwt"  # so errors and help() say nwt.Error, nwt.ImageFolder

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> _typing.Any:  # "import nwt.torch" isn't needed
        if name == "torch":
            return _importlib.import_module("nwt.torch")
        hint = ": write nwt.DataLoader, or nwt.torch.DataLoader for tensors" if name == "Dataset" else ""
        raise AttributeError(f"module 'nwt' has no attribute {name!r}{hint}")
