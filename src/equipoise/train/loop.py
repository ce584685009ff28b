"""The training loop: task → rollouts → rewards → assign → update → logs, checkpoint, evaluation.

One process by default; under `torchrun` every rank samples and trains its share, and the numbers stay those of one.
A killed run resumes bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import math
import platform
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise import __version__, tasks
from equipoise import policy as models
from equipoise.config import Config, ConfigError, dump
from equipoise.evaluate import Evaluation, evaluate, line
from equipoise.objective import Credit, response_ids
from equipoise.rollout import sampler as open_sampler
from equipoise.rollout.vllm import VllmSampler
from equipoise.tasks import Prompt
from equipoise.train import checkpoint, ranks
from equipoise.train.batch import Collector, StepBatch, encode_prompt, statistics, write_rollouts
from equipoise.train.folder import RunError, RunFolder, append, replace, write_table
from equipoise.train.gaming import Crossing, Watcher
from equipoise.train.probe import Probe
from equipoise.train.progress import Terminal
from equipoise.train.run_start import check_claim
from equipoise.train.score import Scorer, check_isolation, check_own, last_line
from equipoise.train.stopping import graceful_stop
from equipoise.train.tally import Failing
from equipoise.train.token_credit import TokenCredit, open_teacher
from equipoise.train.trackers import open_trackers
from equipoise.train.update import NotFinite, Updater
from equipoise.verifiers.code import backend

TROUBLES_PER_STEP = 20  # kept in troubles.jsonl
ON_POLICY = (
    "one optimizer step a batch: every ratio π/π_old is 1, so {} clips nothing and is a plain policy gradient; "
    "train.mini_batch or train.updates make several steps of a batch"
)


class Interrupted(RunError):
    """Stopped by Ctrl-C or SIGTERM after the step it was in; the checkpoint is written."""


class Trainer:
    def __init__(self, config: Config, *, resume: bool = False) -> None:
        config.check()
        ranks.start()
        if config.rollout.prompts < ranks.count():
            raise ConfigError(
                f"rollout.prompts = {config.rollout.prompts}: must be at least one for each of the {ranks.count()} "
                "processes"
            )
        if 0 < config.train.mini_batch < ranks.count():
            raise ConfigError(
                f"train.mini_batch = {config.train.mini_batch}: must be at least one prompt for each of the "
                f"{ranks.count()} processes, or 0"
            )
        if config.rollout.engine == "vllm" and ranks.count() > 1:
            raise ConfigError(f'rollout.engine = "vllm": needs one process, not {ranks.count()}; use native')
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        torch.manual_seed(config.train.seed)  # LoRA adapters begin at random: alike on all ranks, and after a kill
        self.config = config
        self.folder = RunFolder(config.train.out)
        self.step = 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.folder.unlock)
            if ranks.me() == 0:
                self.folder.lock()
                check_claim(self.folder, config, resume)
            ranks.barrier()
            self.objective = config.build_objective()
            backend.use(config.sandbox.backend, config.sandbox.limits())
            check_own(config.reward)
            m, d = config.model, config.task

            @functools.cache
            def policy() -> models.Policy:
                """Loaded when first needed: a task that cannot be opened should say so before a large model is read."""
                return models.load(
                    m.name, dtype=getattr(torch, m.dtype), device=_device(m.device),
                    gradient_checkpointing=m.gradient_checkpointing,
                    lora=models.Lora(rank=m.lora_rank) if m.lora_rank else None,
                )  # fmt: skip

            self.task = tasks.open_task(
                d.name,
                config.train.seed,
                **d.options(),
                count_tokens=lambda prompt: len(encode_prompt(policy(), prompt, d.chat)),
            )
            check_isolation(self.task)
            scorer = Scorer(config.reward, self.task, chat=d.chat)
            self.watcher = Watcher(config.reward, self.task, chat=d.chat)
            self.policy = policy()
            if config.train.shard and not self.policy.is_llama_like:
                raise ConfigError(f"train.shard = true: needs a Llama-like model, and {m.name} is none")
            reference = models.frozen_copy(self.policy) if config.objective.kl and not m.lora_rank else None
            teacher = open_teacher(config.train.teacher, self.policy) if config.train.teacher else None
            self.sampler = (
                VllmSampler(self.policy, memory=config.rollout.engine_memory)
                if config.rollout.engine == "vllm"
                else open_sampler(self.policy)
            )
            if isinstance(self.sampler, VllmSampler):
                undo.callback(self.sampler.close)
            self.collector = Collector(config, self.policy, self.sampler, self.task, scorer, self._rate)
            self.held_out = self._held_out() if config.eval.every else []
            self.probe: Probe | None = None
            self.uninformative = 0  # steps in a row
            self.failing = Failing()
            self.unscored = ""  # why too many responses of the last step have no score
            self.log_seconds = 0.0
            first = ranks.me() == 0
            self.trackers = open_trackers(config.log, self.folder.path, config.flat()) if first else []
            with self._writing():
                if first:
                    replace(self.folder.config, dump(config))
                    if not resume:
                        replace(self.folder.environment, json.dumps(_environment(self.policy.device), indent=2) + "\n")
                state = self._restored() if resume else None
            longest = self.collector.params.max_tokens
            self.updater = Updater(config, self.objective, self.policy, reference, longest)
            self.token_credit = TokenCredit(config, self.updater, self.policy, teacher)
            if state is not None:
                self._resume(state)
            undo.pop_all()

    def run(self) -> None:
        """Train to the end, or raise: RunError with a sentence for the user, Interrupted with the command to resume."""
        c = self.config
        terminal = Terminal(c.train.out, c.train.steps, self.step, c.log.terminal and ranks.me() == 0)
        self.updater.say = lambda text: terminal.say(f"step {self.step:4d}  {text}")
        if isinstance(self.task, tasks.Dataset):
            terminal.say(str(self.task.summary))
        if c.updates_per_batch == 1 and self.objective.surrogate.name != "reinforce":
            terminal.say(ON_POLICY.format(self.objective.surrogate.name))
        try:
            with graceful_stop() as stopping:
                if self.step == 0:
                    self._evaluate(terminal)
                while self.step < c.train.steps:
                    self._step(terminal)
                    done = self.step == c.train.steps
                    stuck = self.uninformative >= c.train.max_uninformative
                    stuck = stuck or bool(self.unscored or self.failing.sentence)
                    stop = any(ranks.gather(stopping.wanted))  # all ranks stop after the same step
                    if c.eval.every and (self.step % c.eval.every == 0 or done):
                        self._evaluate(terminal)
                    if done or stuck or stop or self.step % c.train.checkpoint_every == 0:
                        self._checkpoint()
                    if self.failing.sentence:
                        raise RunError(f"{self.failing.sentence}; {self.folder.troubles} has the reasons")
                    if self.unscored:
                        raise RunError(
                            f"{self.unscored}; {self.folder.troubles} has the reasons: repair the verifier or the "
                            "data, or raise reward.max_unscored"
                        )
                    if stuck:
                        raise RunError(
                            f"no two responses to the same prompt differed in reward for {self.uninformative} steps: "
                            f"there is nothing to learn from; look at {self.folder.rollouts} (is the reward always the "
                            "same, the task too hard or too easy?), or raise train.max_uninformative"
                        )
                    if stop and not done:
                        raise Interrupted(f"stopped after step {self.step}; go on with: {self._resume_command()}")
        finally:
            terminal.close()
            for tracker in self.trackers:
                tracker.close()
            if isinstance(self.sampler, VllmSampler):
                self.sampler.close()
            self.folder.unlock()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Around whatever writes into the run directory: a full disk is a sentence that says how to go on."""
        try:
            yield
        except OSError as error:
            kept = checkpoint.steps(self.folder.checkpoints)
            last = f"step {kept[-1]} is the last whole checkpoint" if kept else "no checkpoint was written yet"
            then = f"go on with: {self._resume_command()}" if self.folder.config.exists() else "start it again"
            raise RunError(
                f"{self.folder.path}: cannot be written: {error.strerror or error}; {last}; make room and {then}"
            ) from error

    def _resume_command(self) -> str:
        return f"equipoise train {shlex.quote(str(self.folder.config))} --resume"

    def _step(self, terminal: Terminal) -> None:
        start = time.perf_counter()
        self.step += 1
        self.collector.seconds = {"rollout": 0.0, "reward": 0.0}
        with self.updater.whole():
            batch = self.collector.collect(self.step)
        metrics = statistics(batch, self.collector.params.max_tokens)
        seconds = {**self.collector.seconds, "log": self.log_seconds}
        failing = self.failing.see(batch.tallies)
        informative = False
        if len(batch.texts) == 0 or failing:
            metrics = {"reward/mean": math.nan, "completions/mean_length": math.nan, "policy_loss": 0.0} | metrics
        else:
            if first_rank := ranks.me() == 0:
                self.watcher.ask(self.step, batch)
            mark = time.perf_counter()
            credit = self.assign(batch)
            informative = bool(credit.pulled.any())
            if credit.token_advantage is not None:
                metrics["teacher/kl"] = -float(credit.token_advantage.mean())  # of π_old to the teacher, a token
            seconds["assign"] = time.perf_counter() - mark
            try:
                metrics |= self.updater.update(batch, credit, self.step)
            except NotFinite as error:
                kept = checkpoint.steps(self.folder.checkpoints)
                raise RunError(
                    f"{error}; the weights were left alone, the last checkpoint is "
                    f"{f'step {kept[-1]}' if kept else 'none'}: lower optim.lr or optim.clip_norm, or train in float32"
                ) from error
            seconds["train"] = time.perf_counter() - mark - seconds["assign"]
            if first_rank:
                measured, crossings = self.watcher.settle()
                metrics |= measured
                self._warn(terminal, crossings)
            every = self.config.log.rollouts_every
            if every and first_rank and (self.step == 1 or self.step % every == 0):
                with self._writing():
                    write_rollouts(self.folder.rollouts, self.step, batch, credit)
        total = time.perf_counter() - start
        metrics["tokens_per_s"] = float(batch.rollouts.lengths.sum()) / total
        metrics |= {f"timing_s/{k}": v for k, v in seconds.items()} | {"timing_s/step": total}
        self._log(batch, metrics, terminal)
        unscored = batch.unscored / batch.kinds.total()
        if unscored > self.config.reward.max_unscored:
            self.unscored = f"{unscored:.0%} of the responses have no score ({_told(batch)})"
        self.log_seconds = time.perf_counter() - start - total  # told with the next step
        if not failing:
            self.uninformative = 0 if informative else self.uninformative + 1

    def assign(self, batch: StepBatch) -> Credit:
        """The credit of a step's responses and, where the run gives tokens one of their own, of each token."""
        return self.objective.assign(
            batch.rewards,
            batch.rollouts.prompt.cpu(),
            batch.lengths.cpu(),
            tokens=_kept_tokens(batch),
            **self._successes(batch),
            **self.token_credit.of(batch),
        )

    def _log(self, batch: StepBatch, metrics: dict[str, float], terminal: Terminal) -> None:
        if ranks.me() == 0:
            with self._writing():
                append(self.folder.metrics, {"step": self.step, **metrics})
                for trouble in batch.troubles[:TROUBLES_PER_STEP]:
                    append(self.folder.troubles, {"step": self.step, **trouble})
            for tracker in self.trackers:
                tracker.log(metrics, self.step)
        terminal.step(self.step, metrics)
        for trouble in batch.troubles:
            subject = f"{trouble['function']}: {trouble['verdict']}"
            terminal.once(subject, f"{subject}: {last_line(trouble['reason'])} (see {self.folder.troubles})")

    def _warn(self, terminal: Terminal, crossings: list[Crossing]) -> None:
        for crossing in crossings:
            terminal.warn(f"step {self.step:4d}  {crossing}")
            with self._writing():
                for prompt, _, response in crossing.examples:
                    about = {"function": crossing.measure, "verdict": "warning", "reason": response}
                    append(self.folder.troubles, {"step": self.step, "prompt": prompt, **about})

    def _rate(self, reward: Tensor) -> Tensor:
        """Rewards as success rates, where a reward function gives numbers: on the range that the difficulty names."""
        return reward if self.objective.difficulty is None else self.objective.difficulty.rate(reward)

    def _successes(self, batch: StepBatch) -> dict[str, Any]:
        """What `assign` gets about successes: of the batch, of all that was sampled for it, and of earlier steps.
        Nothing where numbers serve as accuracies and are none, so that the rewards' own range is checked there."""
        if not bool(((batch.sampled >= 0) & (batch.sampled <= 1)).all()):
            return {}
        known = {"accuracy": batch.accuracy, "batch_accuracy": float(batch.sampled.mean())}
        return known if self.objective.difficulty is None else {**known, "history": batch.past}

    def _held_out(self) -> list[tuple[Prompt, list[int]]]:
        """The evaluation's prompts and their tokens; one that cannot be used stops the run before it begins."""
        c = self.config
        try:
            prompts = self.task.evaluation(c.eval.per_level)
        except ValueError as error:
            raise ConfigError(f"eval.per_level = {c.eval.per_level}: {error}") from error
        return [(p, encode_prompt(self.policy, p, c.task.chat)) for p in prompts]

    def _evaluate(self, terminal: Terminal) -> None:
        c = self.config
        if not c.eval.every:
            return
        prompts, ids = zip(*self.held_out, strict=True)
        with self.updater.whole():
            evaluation = evaluate(
                self.policy, self.sampler, self.task, prompts, ids, samples=c.eval.samples,
                temperature=c.eval.temperature, greedy=c.eval.greedy, max_tokens=self.collector.params.max_tokens,
                stop=self.collector.params.stop, share=ranks.share, gather=ranks.gather,
            )  # fmt: skip
            result = evaluation.metrics | (self._probed(evaluation, ids) if c.eval.probe else {})
        if ranks.me() == 0:
            measured, crossings = self.watcher.evaluated(evaluation)
            result |= measured
            self._warn(terminal, crossings)
            with self._writing():
                write_evaluation(self.folder.evaluations, self.step, evaluation)
                append(self.folder.eval, {"step": self.step, **result})
            for tracker in self.trackers:
                tracker.log({f"eval/{k}": v for k, v in result.items() if isinstance(v, float)}, self.step)
        terminal.say(f"step {self.step:4d}  held out: {line(result)}")

    def _probed(self, evaluation: Evaluation, ids: Sequence[list[int]]) -> dict[str, float]:
        """What the fixed set says; the first evaluation makes it, and a run that goes on reads it."""
        temperature = self.config.eval.temperature
        if self.probe is None and self.step == 0:
            self.probe = Probe.of(self.policy, evaluation, ids, temperature)
            if ranks.me() == 0:
                with self._writing():
                    self.probe.save(self.folder.probe)
        elif self.probe is None:
            self.probe = Probe.load(self.folder.probe)
        return self.probe.metrics(self.policy, temperature) | self.probe.by_start(evaluation)

    def _checkpoint(self) -> None:
        updates = self.updater.state_dict()
        state = {
            **updates,
            "skipped": (*updates["skipped"], self.uninformative),
            "position": self.collector.position,
            "history": self.collector.history.state_dict(),
            "gaming": self.watcher.state_dict(),
        }
        with self.updater.whole():
            if ranks.me() == 0:
                self._write_checkpoint(state)
        ranks.barrier()

    def _write_checkpoint(self, state: dict[str, Any]) -> None:
        with self._writing():
            self.folder.sync()  # a checkpoint must not outlive the lines that lead up to it
            weights = dict(self.policy.model.named_parameters()) if self.updater.shards else None
            checkpoint.save(self.folder.checkpoints, self.step, self.policy, state, self.config.train.keep, weights)
            self.collector.history.write(self.folder.prompts)

    def _restored(self) -> dict[str, Any] | None:
        """The state of the last checkpoint, with its weights in the policy; what was logged after it is forgotten."""
        kept = checkpoint.steps(self.folder.checkpoints)
        if ranks.me() == 0:
            self.folder.rewind(kept[-1] if kept else -1)
            if self.folder.checkpoints.is_dir():
                checkpoint.discard_unfinished(self.folder.checkpoints)
        ranks.barrier()
        return checkpoint.load(self.folder.checkpoints, kept[-1], self.policy) if kept else None

    def _resume(self, state: dict[str, Any]) -> None:
        *skipped, self.uninformative = state["skipped"]
        self.updater.load_state_dict({**state, "skipped": skipped})
        self.step = state["step"]
        self.collector.position = state["position"]
        self.collector.history.load_state_dict(state.get("history", {"seen": {}}))  # absent in the first runs
        if "gaming" in state:  # absent in the first runs
            self.watcher.load_state_dict(state["gaming"])


def write_evaluation(folder: Path, step: int, evaluation: Evaluation) -> None:
    """`step-N.parquet`, a row per response to a held-out prompt: what stands behind the line in eval.jsonl."""
    import pyarrow as pa

    write_table(folder, step, pa.Table.from_pylist(evaluation.rows()))


def _environment(device: torch.device) -> dict[str, str]:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers", "numpy")}
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "equipoise": __version__,
        **versions,
        "python": platform.python_version(),
        "system": platform.system(),
        "device": card,
    }


def _told(batch: StepBatch) -> str:
    """How many of each verdict that needs looking at, and the first one's reason."""
    counts = Counter(trouble["verdict"] for trouble in batch.troubles)
    many = ", ".join(f"{kind} {n}" for kind, n in counts.most_common())
    return f"{many}; the first: {last_line(batch.troubles[0]['reason'])}" if batch.troubles else "masked"


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = torch.cuda.device_count()
    if name != "cpu" and int(name.partition(":")[2] or 0) >= there:
        raise ConfigError(f'model.device = "{name}": there are {there} CUDA devices here; use cpu or auto')
    return name


def _kept_tokens(batch: StepBatch) -> Tensor:
    keep = (batch.lengths > 0)[response_ids(batch.rollouts.lengths)]
    return batch.rollouts.tokens[keep].cpu()
