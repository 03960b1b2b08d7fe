"""Four epochs of training on some ranks that end in mid-epoch, or go on: trainers.py TRAINER FOLDER PICTURES PROGRAM RUN, with RANK and WORLD_SIZE for two.
PICTURES is a folder, or the name of a dataset in ported.py.

The samples that were trained on and validated come into FOLDER/seen-RUN-RANK.json; the model and the loader's state, into FOLDER too.
"""

import contextlib
import json
import os
import pathlib
import sys

import ported
import torch

import nwt.torch

EPOCHS, STOP = 4, (1, 3)  # the first run ends in epoch 1, after 3 batches
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
RANK = int(os.environ.get("RANK", "0"))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.validated = torch.nn.Linear(3, 2), [], []

    def forward(self, image, label, index):
        (self.seen if self.training else self.validated).append(index.tolist())
        logits = self.layer(image.float().mean((2, 3)) / 255)
        return {"loss": torch.nn.functional.cross_entropy(logits, label), "logits": logits}


class Stopped(Exception):
    """What ends a run."""


def loop(first, loader, model, prepared, validate, backward, step, save):
    """A loop as Fabric's and Accelerate's users write it."""
    while (epoch := loader.state_dict()["epoch"]) < EPOCHS:
        for n, batch in enumerate(prepared, 1):
            backward(model(**batch)["loss"])
            step()
            if first and (epoch, n) == STOP:
                save()
                return
        model.eval()
        for batch in validate:
            with torch.no_grad():
                model(**batch)
        model.train()


def plain(folder, first, loader, val, model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    state = folder / "state.json"
    if not first:
        loader.load_state_dict(json.loads(state.read_text()))
    loop(first, loader, model, loader, val, lambda loss: loss.backward(), optimizer.step, lambda: state.write_text(json.dumps(loader.state_dict())))


def fabric(folder, first, loader, val, model):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto")
    fabric.launch()
    prepared, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    state = folder / "state.json"
    if not first:
        loader.load_state_dict(json.loads(state.read_text()))
    train, validate = fabric.setup_dataloaders(loader, val)
    loop(first, loader, prepared, train, validate, fabric.backward, optimizer.step, lambda: state.write_text(json.dumps(loader.state_dict())))


def accelerate(folder, first, loader, val, model):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    prepared, optimizer, train, validate = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader, val)
    accelerator.register_for_checkpointing(loader)
    if not first:
        accelerator.load_state(str(folder / "accelerate"))
    loop(first, loader, prepared, train, validate, accelerator.backward, optimizer.step, lambda: accelerator.save_state(str(folder / "accelerate")))


def lightning(folder, first, loader, val, model):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return (self.model(**batch) if isinstance(batch, dict) else self.model(*batch))["loss"]

        def validation_step(self, batch):
            if self.trainer.sanity_checking:
                return
            self.training_step(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Resume(lightning.Callback):
        """The state before Lightning counts batches, since another number of ranks has another number of them."""

        def on_load_checkpoint(self, trainer, module, checkpoint):
            loader.load_state_dict(checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0])

    class Stop(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if first and (trainer.current_epoch, batch_idx + 1) == STOP:
                trainer.save_checkpoint(kept)
                raise Stopped

    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp" if RANKS > 1 else "auto", callbacks=[Stop(), Resume()],
        max_epochs=EPOCHS, reload_dataloaders_every_n_epochs=0 if "stale" in sys.argv else 1,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    kept = folder / "lightning.ckpt"
    with contextlib.suppress(Stopped):
        trainer.fit(Module(), loader, val, ckpt_path=None if first else str(kept), weights_only=False)


def transformers(folder, first, loader, val, model):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    state, steps = folder / "state.json", STOP[0] * len(loader) + STOP[1]

    class Keep(TrainerCallback):
        def on_save(self, args, state_of_trainer, control, **kwargs):
            state.write_text(json.dumps(loader.state_dict()))

    class Batches:
        """The batches without their number, which a resumed epoch has another one of."""

        def __iter__(self):
            return iter(loader)

    class Trains(Trainer):
        def get_train_dataloader(self):
            return Batches()

        def get_eval_dataloader(self, dataset=None):
            return val

    done = 0
    if not first:
        loader.load_state_dict(json.loads(state.read_text()))
        done = json.loads((next((folder / "trainer").glob("checkpoint-*")) / "trainer_state.json").read_text())["global_step"]
    args = TrainingArguments(
        str(folder / "trainer"), use_cpu=True, report_to=[], disable_tqdm=True, remove_unused_columns=False, ignore_data_skip=True, eval_strategy="epoch",
        max_steps=steps if first else done + loader.remaining(EPOCHS), save_strategy="steps" if first else "no", save_steps=steps,
    )  # fmt: skip
    trainer = Trains(model, args, eval_dataset=val.dataset, callbacks=[Keep()])
    trainer.train(resume_from_checkpoint=not first)
    if first:
        model.validated = model.validated[: len(val)]  # it validates where max_steps ends it, too


if __name__ == "__main__":
    name, folder, pictures, program, run = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if hasattr(ported, pictures):
        dataset = getattr(ported, pictures)()
        loader, validation = (
            nwt.torch.DataLoader(dataset, size, shuffle=size == 4, num_workers=1, collate_fn=dataset.collate, seed=7, program=program) for size in (4, 8)
        )
        model = ported.Model(dataset)
    else:
        options = {"size": 32, "seed": 7, "num_workers": 1, "program": program}
        loader = nwt.torch.DataLoader(nwt.ImageFolder(pictures, batch_size=4, shuffle=True, train=True, **options))
        validation = nwt.torch.DataLoader(nwt.ImageFolder(pictures, batch_size=8, **options))
        model = Model()
    with loader.loader, validation.loader:
        globals()[name](folder, run == 0, loader, validation, model)
    (folder / f"seen-{run}-{RANK}.json").write_text(json.dumps([model.seen, model.validated]))
