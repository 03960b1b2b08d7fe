"""Training on some ranks that ends in mid-epoch, or goes on: trainers.py TRAINER FOLDER, with RANK and WORLD_SIZE for two.

The samples that were trained on come into FOLDER/seen-RANKS-RANK.json; the model and the loader's state, into FOLDER too.
"""

import contextlib
import json
import os
import pathlib
import sys

import torch

import nwt.torch

STOP = 3  # batches of the first run
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


class Model(torch.nn.Module):
    def __init__(self, seen=None):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 2), [] if seen is None else seen

    def forward(self, image, label, index):
        self.seen += index.tolist()
        logits = self.layer(image.float().mean((2, 3)) / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, label), "logits": logits}


def loop(folder, loader, model, prepared, backward, step):
    """A loop as Fabric's and Accelerate's users write it."""
    state = folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    for n, batch in enumerate(prepared, 1):
        backward(model(**batch)["loss"])
        step()
        if RANKS == 1 and n == STOP:
            state.write_text(json.dumps(loader.state_dict()))
            break


def plain(folder, loader, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loop(folder, loader, model, loader, lambda loss: loss.backward(), optimizer.step)


def fabric(folder, loader, model):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto")
    fabric.launch()
    prepared, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    loop(folder, loader, prepared, fabric.setup_dataloaders(loader), fabric.backward, optimizer.step)


def accelerate(folder, loader, model):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    prepared, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
    loop(folder, loader, prepared, batches, accelerator.backward, optimizer.step)


def lightning(folder, loader, model):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Resume(lightning.Callback):
        """The state before Lightning counts batches, since another number of ranks has another number of them."""

        def on_load_checkpoint(self, trainer, module, checkpoint):
            loader.load_state_dict(checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0])

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if RANKS == 1 and batch_idx == STOP - 1:
                trainer.save_checkpoint(kept)
                raise Stopped

    callbacks = [Stop()] + ([Resume()] if "callback" in sys.argv else [])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto", callbacks=callbacks,
        max_epochs=1 if "callback" in sys.argv else 2,  # without it, Lightning ends the first too early
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    kept = folder / "lightning.ckpt"
    with contextlib.suppress(Stopped):
        trainer.fit(Module(), loader, ckpt_path=str(kept) if kept.exists() else None, weights_only=False)


class Stopped(Exception):
    """What ends a run."""


def transformers(folder, loader, model):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    state = folder / "state.json"

    class Keep(TrainerCallback):
        def on_save(self, args, state_of_trainer, control, **kwargs):
            state.write_text(json.dumps(loader.state_dict()))

    class Trains(Trainer):
        def get_train_dataloader(self):
            return loader

    resume = state.exists()
    if resume:
        loader.load_state_dict(json.loads(state.read_text()))
    limit = {"max_steps": STOP + 3} if resume else {"max_steps": STOP, "save_steps": STOP}
    args = TrainingArguments(
        str(folder / "trainer"), use_cpu=True, report_to=[], disable_tqdm=True, remove_unused_columns=False,
        ignore_data_skip=True, save_strategy="no" if resume else "steps", **limit,
    )  # fmt: skip
    trainer = Trains(model, args, callbacks=[Keep()])
    trainer.train(resume_from_checkpoint=resume)


if __name__ == "__main__":
    name, folder, pictures, program = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with nwt.ImageFolder(pictures, batch_size=4, size=32, shuffle=True, seed=7, train=True, num_workers=1, program=program) as inner:
        model = Model()
        globals()[name](folder, nwt.torch.DataLoader(inner), model)
    (folder / f"seen-{RANKS}-{RANK}.json").write_text(json.dumps(model.seen))
