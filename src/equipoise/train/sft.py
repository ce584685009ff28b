"""A supervised warm-up: imitate a data set's responses, then begin reinforcement learning.

    sft.toml   metrics.jsonl (a line per step)   eval.jsonl (held-out loss)   checkpoints/step-N/

A checkpoint is a model that `equipoise train --model.name` starts from, and with its optimizer's
state what a killed run goes on from, bit for bit: which demonstrations a step shows follows from
the seed and the step's number alone. One process. Not covered: preference pairs, several turns to
imitate, tokens of the prompt in the loss.
"""

from __future__ import annotations

import functools
import shlex
import time
from typing import Any

import torch

from equipoise.config import ConfigError, dump
from equipoise.config.sft import SftConfig, load_sft
from equipoise.tasks import Dataset, open_demonstrations
from equipoise.train import checkpoint
from equipoise.train.batch import count_tokens
from equipoise.train.folder import SFT_CONFIG, RunError, RunFolder, append, replace
from equipoise.train.imitation import Demonstration, Encoder, Imitator
from equipoise.train.opening import open_model
from equipoise.train.progress import Terminal
from equipoise.train.sample import short
from equipoise.train.settle import SFT_RATES, Outline, as_begun, settle
from equipoise.train.stopping import Interrupted, graceful_stop

# What a resumed run may set anew.
MAY_CHANGE = (
    "sft.out",
    "sft.checkpoint_every",
    "sft.keep",
    "sft.eval_every",
    "sft.held_out",
    "sft.terminal",
)


class Sft:
    """One supervised run; `run` trains to the end or raises RunError with a sentence for the user."""

    def __init__(self, config: SftConfig, *, resume: bool = False) -> None:
        if config.sft.threads:
            torch.set_num_threads(config.sft.threads)
        torch.manual_seed(config.sft.seed)  # LoRA adapters begin at random
        self.folder = RunFolder(config.sft.out)
        self.config_file = self.folder.path / SFT_CONFIG
        self.folder.lock("--sft.out")
        try:
            self._open(self._claimed(config, resume), resume)
        except BaseException:
            self.folder.leave()
            raise

    def _claimed(self, config: SftConfig, resume: bool) -> SftConfig:
        """A new run wants a new folder, a resumed one the settings it began with."""
        path = self.folder.path
        if self.folder.config.exists():
            raise RunError(f"{path}: holds a run of equipoise train; --sft.out DIR starts another")
        if self.config_file.exists() != resume:
            if resume:
                then = "start it without --resume"
            else:
                then = "--resume goes on with it, --sft.out DIR starts another"
            raise RunError(
                f"{path}: holds {'no warm-up to resume' if resume else 'a warm-up already'}; {then}"
            )
        if not resume:
            return config
        begun = load_sft(self.config_file)
        config = as_begun(begun, config)
        changed = [
            f"{section}.{key} was {value!r}, now {now!r}"
            for section, options in begun
            for key, value in options
            if (now := getattr(getattr(config, section), key)) != value
            and not f"{section}.{key}".startswith(MAY_CHANGE)
        ]
        if changed:
            raise RunError(
                f"{path}: a resumed run keeps its settings, but these differ: {'; '.join(changed)}"
            )
        return config

    def _open(self, config: SftConfig, resume: bool) -> None:
        task = config.task
        # opened by whoever asks first: the task counts tokens where its prompts have a limit
        policy = functools.cache(lambda: open_model(config.model))
        settled = functools.cache(lambda: settle(config, Outline.of(policy()), SFT_RATES))
        self.task = open_demonstrations(
            task.name,
            config.sft.seed,
            **task.options(),
            count_tokens=lambda prompt: count_tokens(policy(), prompt, settled().chat),
        )
        self.policy, self.settled = policy(), settled()
        self.config, chat = self.settled.config, self.settled.chat
        self.encoder = Encoder(self.policy, chat, config.sft.max_tokens)
        self.steps = config.sft.steps or self._steps_of_epochs()
        self.held_out = self._encoded_held_out()
        state = self._restored() if resume else None
        self.imitator = Imitator(
            self.policy, self.config.optim, self.steps, config.sft.micro_tokens, config.sft.seed
        )
        if state is not None:
            self.imitator.load_state_dict(state)
        replace(self.config_file, dump(self.config))

    def _steps_of_epochs(self) -> int:
        rows = self.task.epoch if isinstance(self.task, Dataset) else None
        if rows is None:
            raise ConfigError(
                f"sft.steps = 0: set it, because {self.task.name} has no end that epochs could count"
            )
        return self.config.sft.epochs * -(-rows // self.config.sft.batch)

    def _encoded_held_out(self) -> list[Demonstration]:
        """The first so many; those that are too long would not be answered either."""
        if not self.config.sft.eval_every:
            return []
        prompts = self.task.evaluation()
        levels = max(1, len({prompt.level for prompt in prompts}))
        held_out = self.config.sft.held_out
        some = self.task.evaluation(-(-held_out // levels))[:held_out]
        return [one for prompt in some if (one := self.encoder(prompt)) is not None]

    def _restored(self) -> dict[str, Any] | None:
        """The last checkpoint's state, its weights put into the policy; later logs are dropped."""
        folder, found = self.folder.checkpoints, checkpoint.all_steps(self.folder.checkpoints)
        last = found[-1] if found else 0
        if last and (fault := checkpoint.fault(folder, last)):
            raise RunError(
                f"{folder / f'step-{last}'}: {fault}; nothing was changed: restore it, or move that folder away to go "
                "on from the one before"
            )
        state = checkpoint.load(folder, last, self.policy) if last else None
        self.folder.rewind(last or -1)
        if folder.is_dir():
            checkpoint.discard_unfinished(folder)
        return state

    def run(self) -> None:
        sft = self.config.sft
        terminal = Terminal(sft.out, self.steps, self.imitator.done, False)
        terminal.console.quiet = not sft.terminal
        self.imitator.say = terminal.say
        if done := self.imitator.done:
            where = f"goes on after step {done} of {self.steps}"
            if done == self.steps:
                where = f"finished: step {done} of {self.steps} is done"
            terminal.say(f"{sft.out}: {where}")
        if isinstance(self.task, Dataset):
            terminal.say(str(self.task.summary))
        for note in self.settled.notes:
            terminal.say(note)
        for warning in self.settled.warnings:
            terminal.warn(warning)
        try:
            with graceful_stop() as stopping:
                if self.imitator.done == 0:
                    self._evaluate(terminal)
                while self.imitator.done < self.steps:
                    self._step(terminal)
                    done = self.imitator.done == self.steps
                    if sft.eval_every and (self.imitator.done % sft.eval_every == 0 or done):
                        self._evaluate(terminal)
                    if done or stopping.wanted or self.imitator.done % sft.checkpoint_every == 0:
                        self._checkpoint()
                    if stopping.wanted and not done:
                        again = f"equipoise sft {shlex.quote(str(self.config_file))} --resume"
                        raise Interrupted(
                            f"stopped after step {self.imitator.done}; go on with: {again}"
                        )
            terminal.say(
                f"start from it with: equipoise train CONFIG --model.name {shlex.quote(sft.out)}"
            )
        finally:
            self.folder.unlock()

    def _step(self, terminal: Terminal) -> None:
        begun, done, size = time.perf_counter(), self.imitator.done, self.config.sft.batch
        prompts = [self.task.prompt(i) for i in range(done * size, (done + 1) * size)]
        batch = [one for prompt in prompts if (one := self.encoder(prompt)) is not None]
        if not batch:
            raise RunError(
                f"step {done + 1}: all {size} demonstrations are too long for sft.max_tokens = "
                f"{self.config.sft.max_tokens} or the context of {self.policy.context} tokens"
            )
        if left_out := size - len(batch):
            terminal.once(
                "left out",
                f"step {done + 1}: {left_out} of {size} demonstrations are too long and left out",
            )
        if done == 0:
            terminal.say(self._shown(batch[0]))
        metrics = self.imitator.step(batch)
        seconds = time.perf_counter() - begun
        metrics |= {"left_out": float(left_out), "tokens_per_s": metrics["tokens"] / seconds}
        append(self.folder.metrics, {"step": self.imitator.done, **metrics})
        terminal.say(
            f"step {self.imitator.done:4d}/{self.steps}  loss {metrics['loss']:.4f}  gradient "
            f"{metrics['grad_norm']:.3g}  {metrics['tokens_per_s']:,.0f} tokens/s"
        )

    def _shown(self, one: Demonstration) -> str:
        """The first demonstration, exactly as the model sees it."""
        read, learns = self.policy.tokenizer.batch_decode([one.prompt, one.response])
        return f"the model reads  {short(read)}\nand imitates     {short(learns)}"

    def _evaluate(self, terminal: Terminal) -> None:
        if not self.held_out:
            return
        loss = self.imitator.loss(self.held_out)
        append(
            self.folder.eval,
            {"step": self.imitator.done, "loss": loss, "demonstrations": len(self.held_out)},
        )
        terminal.say(
            f"step {self.imitator.done:4d}  held-out loss {loss:.4f} ({len(self.held_out)} demonstrations)"
        )

    def _checkpoint(self) -> None:
        self.folder.sync()
        state, keep = self.imitator.state_dict(), self.config.sft.keep
        checkpoint.save(self.folder.checkpoints, self.imitator.done, self.policy, state, keep)
