"""A small network that tells circles, squares and crosses apart, fed by nwt and by PyTorch's DataLoader.

    python cnn.py [SEEDS]

It makes its pictures, trains from three seeds with each loader, and prints the share of the validation pictures
that come out right. It needs nwt, torch and torchvision, no GPU, and about a minute.
"""

import pathlib
import statistics
import sys
import tempfile

import torch
import torch.utils.data
import torchvision
from torch.nn import functional
from torchvision.transforms import v2

import nwt.torch

SHAPES, SIZE, EPOCHS = ("circle", "cross", "square"), 32, 6


def picture(shape: str, random: torch.Generator) -> torch.Tensor:
    """A shape of any size and colour, somewhere on noise."""
    x, y, radius = (torch.rand(3, generator=random) * torch.tensor([16, 16, 8]) + torch.tensor([16, 16, 8])).tolist()
    rows, columns = torch.meshgrid(torch.arange(48) - y, torch.arange(48) - x, indexing="ij")
    inside = {
        "circle": rows**2 + columns**2 < radius**2,
        "cross": ((rows.abs() < radius / 3) | (columns.abs() < radius / 3)) & (rows.abs() < radius) & (columns.abs() < radius),
        "square": (rows.abs() < radius * 0.9) & (columns.abs() < radius * 0.9),
    }[shape]
    noise = torch.rand(3, 48, 48, generator=random) * 140
    return (noise + inside * torch.rand(3, 1, 1, generator=random) * 115).byte()


def make(folder: pathlib.Path, each: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for i in range(each):
            torchvision.io.write_jpeg(picture(shape, random), str(folder / shape / f"{i:04}.jpg"), quality=95)


def by_nwt(folder: pathlib.Path, train: bool, seed: int) -> nwt.torch.DataLoader:
    crop = {"scale": (0.6, 1.0), "ratio": (0.9, 1.1)} if train else {}
    batches = nwt.ImageFolder(folder, batch_size=64, size=SIZE, train=train, shuffle=train, seed=seed, **crop)
    return nwt.torch.DataLoader(batches, fields=("image", "label"))


def by_torch(folder: pathlib.Path, train: bool, seed: int) -> torch.utils.data.DataLoader:
    middle = [v2.Resize(SIZE * 8 // 7), v2.CenterCrop(SIZE)]
    crop = [v2.RandomResizedCrop(SIZE, (0.6, 1.0), (0.9, 1.1)), v2.RandomHorizontalFlip()]
    transform = v2.Compose([v2.ToImage(), *(crop if train else middle)])
    files = torchvision.datasets.ImageFolder(folder, transform)
    return torch.utils.data.DataLoader(files, batch_size=64, shuffle=train, generator=torch.Generator().manual_seed(seed))


def accuracy(of, folder: pathlib.Path, seed: int) -> float:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(64, len(SHAPES)),
    )  # fmt: skip
    train, val = of(folder / "train", True, seed), of(folder / "val", False, seed)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, epochs=EPOCHS, steps_per_epoch=len(train))
    for _ in range(EPOCHS):
        for images, labels in train:
            loss = functional.cross_entropy(model(images.float() / 255 - 0.5), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        right = [model(images.float() / 255 - 0.5).argmax(1) == labels for images, labels in val]
    return torch.cat(right).float().mean().item()


def main() -> None:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    means = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make(folder / "train", 400, 0)
        make(folder / "val", 200, 1)
        for of in (by_nwt, by_torch):
            shares = [accuracy(of, folder, seed) for seed in seeds]
            means[of] = statistics.mean(shares)
            print(f"{of.__name__[3:]}: {means[of]:.3f} of the validation pictures are right; " + " ".join(f"{share:.3f}" for share in shares), flush=True)
    if means[by_nwt] < means[by_torch] - 0.03 or means[by_nwt] < 0.8:
        sys.exit("nwt's are worse")


if __name__ == "__main__":
    main()
