"""Batches of nwt as NumPy arrays, each exactly once and in order.

    import nwt
    loader = nwt.Loader(["host1:7474", "host2:7474"], rank=0, world=8)   # servers: nwt-serve
    loader = nwt.ImageFolder("/data/train", batch_size=256, shuffle=42)  # a server of one's own
    for batch in loader.epoch(3):
        batch["image"]  # uint8, [256, 3, 224, 224]; torch.from_numpy takes it as it is
"""

from .beside import ImageFolder
from .loader import Loader
from .wire import Error

__all__ = ["Error", "ImageFolder", "Loader"]
