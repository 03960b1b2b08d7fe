"""Four datasets as PyTorch's users write them, for torch.utils.data.DataLoader, with a model for each that says what it has seen."""

import random

import numpy as np
import torch
import torch.utils.data

N = 34


class Boxes(torch.utils.data.Dataset):
    """Pictures with a varying number of boxes, as COCO's."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        image = torch.full((3, 12 + i % 3, 16), i / N)
        boxes = torch.rand(i % 4, 4)
        if random.random() < 0.5:
            image, boxes = image.flip(2), boxes[:, [2, 1, 0, 3]]
        return image, {"boxes": boxes, "labels": torch.ones(i % 4, dtype=torch.int64), "image_id": i}

    @staticmethod
    def collate(samples):
        return tuple(zip(*samples, strict=True))

    @staticmethod
    def features(images, targets):
        sums = [image.mean((1, 2)) + target["boxes"].sum() for image, target in zip(images, targets, strict=True)]
        return torch.stack(sums), [target["image_id"] for target in targets]


class Text(torch.utils.data.Dataset):
    """Sentences, tokenised as they are read."""

    collate = None

    def __init__(self):
        self.words = {word: number for number, word in enumerate(("<pad>", "a", "bird", "sings", "and", "flies"))}
        self.sentences = [" ".join(["a bird sings", "and flies"][: 1 + i % 2]) for i in range(N)]

    def __len__(self):
        return N

    def __getitem__(self, i):
        tokens = [self.words[word] for word in self.sentences[i].split()]
        ids = np.zeros(8, np.int64)
        ids[: len(tokens)] = tokens
        return {"input_ids": ids, "attention_mask": ids > 0, "text": self.sentences[i], "index": i}

    @staticmethod
    def features(input_ids, attention_mask, text, index):
        assert all(len(one.split()) == mask.sum() for one, mask in zip(text, attention_mask, strict=True))
        return (input_ids * attention_mask).float()[:, :3], index.tolist()


def flip(image, mask):
    return (image[:, ::-1], mask[:, ::-1]) if np.random.rand() < 0.5 else (image, mask)


def crop(image, mask):
    y, x = np.random.randint(0, 5), np.random.randint(0, 9)
    return image[y : y + 16, x : x + 16], mask[y : y + 16, x : x + 16]


def brightness(image, mask):
    return (image.astype(np.float32) / 255 * np.random.uniform(0.8, 1.2)).astype(np.float32), mask


class Segmentation(torch.utils.data.Dataset):
    """Pictures and masks, augmented alike by functions of NumPy arrays, as albumentations' are."""

    collate = None

    def __init__(self):
        self.changes = flip, crop, brightness

    def __len__(self):
        return N

    def __getitem__(self, i):
        image = np.full((20, 24, 3), 7 * i % 256, np.uint8)
        mask = (image[:, :, 0] > 100).astype(np.int64)
        for change in self.changes:
            image, mask = change(image, mask)
        return image.transpose(2, 0, 1), mask, i

    @staticmethod
    def features(images, masks, index):
        assert images.shape[2:] == masks.shape[1:] == (16, 16)
        return images.mean((2, 3)), index.tolist()


class Pairs(torch.utils.data.Dataset):
    """Two views, one of them of a sample drawn at random."""

    collate = None

    def __len__(self):
        return N

    def __getitem__(self, i):
        other = random.choice((i, torch.randint(N, ()).item()))
        return (torch.full((3,), float(i)), torch.full((3,), float(other))), other == i, (i, other)

    @staticmethod
    def features(views, same, indices):
        assert torch.equal(views[0][:, 0].long(), indices[0]) and same.dtype == torch.bool
        return views[0] - views[1], indices[0].tolist()


class Model(torch.nn.Module):
    def __init__(self, dataset):
        super().__init__()
        self.layer, self.features, self.seen, self.validated = torch.nn.Linear(3, 1), dataset.features, [], []

    def forward(self, *parts, **named):
        features, index = self.features(*parts, **named)
        (self.seen if self.training else self.validated).append(index)
        return {"loss": self.layer(features).square().mean()}
