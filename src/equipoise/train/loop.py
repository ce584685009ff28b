"""The training loop: task → rollouts → rewards → assign → update → logs, checkpoint, evaluation.

One process by default; under `torchrun` every rank samples and trains its share, and the numbers
stay those of one. A killed run resumes bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never

import torch

from equipoise import policy as models
from equipoise import tasks
from equipoise.config import Config, ConfigError, load
from equipoise.evaluate import Evaluation, evaluate
from equipoise.kernels import cache
from equipoise.objective import Credit, Objective
from equipoise.objective.difficulty import RangeError
from equipoise.objective.objective import BatchError
from equipoise.policy import memory
from equipoise.rollout import sampler as native_sampler
from equipoise.tasks import Prompt, Task
from equipoise.train import announce, checkpoint, ranks
from equipoise.train.ahead import open_batches
from equipoise.train.average import average
from equipoise.train.batch import Collector, StepBatch, count_tokens, encode_prompt, statistics
from equipoise.train.best import Best
from equipoise.train.callbacks import Callbacks
from equipoise.train.folder import RunError, RunFolder, read_lines
from equipoise.train.gaming import Watcher
from equipoise.train.given import ConfigLike, Reward, check_same, gather, unknown_argument
from equipoise.train.health import Health
from equipoise.train.journal import Journal, writing
from equipoise.train.opening import check_processes, close_engine, load_policy, open_engine
from equipoise.train.probe import Probe
from equipoise.train.progress import Terminal
from equipoise.train.result import TrainResult
from equipoise.train.run_start import Start, check_start, resume_command, rewind
from equipoise.train.score import Scorer, check_isolation, check_own, rate_of
from equipoise.train.settle import Outline, Settled, as_begun, settle
from equipoise.train.stopping import Interrupted, Stopping, graceful_stop
from equipoise.train.token_credit import TokenCredit, open_teacher
from equipoise.train.update import NotFinite, Updater
from equipoise.verifiers.code import backend


class Trainer:
    """A run: everything it needs is opened here, and `train` goes to its end.

    >>> trainer = eq.Trainer(model="smollm", dataset=rows, rewards=[right], objective="dapo+balanced+hadw")
    >>> trainer.train()

    config      a Config, a TOML file, or options as a mapping, {"train.steps": 40} or {"train": {"steps": 40}};
                the other arguments win over it
    model       a name or a path (`model.name`), a Policy, or a transformers model with its tokenizer, which is then
                trained in place
    task        a name (`task.name`), or an object with the methods of :class:`equipoise.tasks.Task`
    dataset     a path, a list of dicts, or a `datasets.Dataset`: a prompt and an answer, and whatever the rewards read
    rewards     functions, f(prompt, response, row) or TRL's f(prompts, completions, **columns), plain or async, which
                are called in this process; or names as in `reward.functions`,
                which run in workers with a deadline
    objective   a preset, a composite name, or an Objective, of which the choices are taken
    callbacks   objects with on_step, on_evaluation or on_checkpoint (see :class:`TrainerCallback`)
    resume      go on with the run in `train.out`, from its last checkpoint or from that of `from_step`
    weights     False: no checkpoint is written when the run is done; its evaluations are what is wanted
    """

    def __init__(
        self,
        config: ConfigLike = None,
        *,
        model: Any = None,
        tokenizer: Any = None,
        task: str | Task | None = None,
        dataset: Any = None,
        rewards: Sequence[Reward] | Reward | None = None,
        objective: str | Objective | None = None,
        callbacks: Sequence[Any] = (),
        resume: bool = False,
        from_step: int | None = None,
        weights: bool = True,
        **unknown: Never,
    ) -> None:
        for name in unknown:
            *known, _ = inspect.signature(Trainer).parameters
            raise TypeError(unknown_argument(name, known))
        self.given = gather(
            config,
            model=model,
            tokenizer=tokenizer,
            task=task,
            dataset=dataset,
            rewards=rewards,
            objective=objective,
        )
        config = self.given.config
        self.callbacks = Callbacks(callbacks)
        check_processes(config)
        ranks.start()
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        # LoRA adapters begin at random: alike on all ranks, and after a kill
        torch.manual_seed(config.train.seed)
        self.config = config
        self.folder = RunFolder(config.train.out)
        self.step = 0
        self.log_seconds = 0.0
        self.ended = False
        self.weights = weights
        self.probe: Probe | None = None
        self.best = Best(config.train.keep_best)
        # Whatever fails from here on gives the folder and the engine back: a mistyped option must
        # not leave a locked, half-made run behind.
        with contextlib.ExitStack() as undo:
            undo.callback(self.folder.leave)
            # The folder first: two runs that were started twice by mistake meet here, before either
            # loads a model.
            self._claim(resume, from_step)
            if resume:
                self.config = as_begun(load(self.folder.config), config)
            self._open(undo, resume)
            self._begin(resume)
            undo.pop_all()

    @property
    def run_dir(self) -> Path:
        return self.folder.path

    def _claim(self, resume: bool, from_step: int | None) -> None:
        """Take the run directory, for the first process and so for all."""
        self.start: Start | None = None  # the first process's
        self.changed: list[str] = []  # what is different about a resumed run, and allowed
        if ranks.me() == 0:
            self.folder.lock()
            self.start = check_start(self.folder, self.config, resume=resume, from_step=from_step)
            self.changed = check_same(self.folder.given, self.given) if resume else []
        ranks.barrier()

    # The model is loaded when it is first asked for: by a task that counts tokens, or after it.
    @functools.cached_property
    def policy(self) -> models.Policy:
        return load_policy(self.given)

    @functools.cached_property
    def settled(self) -> Settled[Config]:
        return settle(self.config, Outline.of(self.policy))

    def _encode(self, prompt: Prompt) -> list[int]:
        return encode_prompt(self.policy, prompt, self.settled.chat)

    def _open(self, undo: contextlib.ExitStack, resume: bool) -> None:
        """Everything that is read, cheap things first,
        so that a mistake is known before a large model is loaded.
        """
        # Before the model is loaded: its check against transformers calls kernels already.
        self.kernels: int | None = cache.count()
        self.objective = self.config.build_objective()
        self._open_task()
        rate = rate_of(self.objective)
        scorer = Scorer(self.config.reward, self.task, given=self.given.functions, rate=rate)
        self.config = self.settled.config  # the model is loaded here at the latest
        memory.limit(self.policy.device, self.config.train.memory_cap)
        scorer.conversational(self.settled.chat.on)
        self.watcher = Watcher(self.config.reward, self.task, chat=self.settled.chat.on)
        self._open_frozen_models()
        self._open_sampling(scorer, undo)
        self.held_out = self._held_out() if self.config.eval.every else []
        # one that cannot be asked stops the run before it begins, evaluated or not
        for i in range(self.config.rollout.prompts):
            self._encode(self.task.prompt(i))
        if not resume and isinstance(self.task, tasks.Dataset) and self.task.whole:
            # The stream may come to it after days, and a resumed run would come to it again.
            self._encode(max(self.task.train, key=lambda prompt: len(prompt.text)))

    def _open_task(self) -> None:
        """The prompts, after a look at what will judge the responses to them."""
        config, given = self.config, self.given
        backend.use(config.sandbox.backend, config.sandbox.limits())
        check_own(config.reward, given.functions)
        self.task = given.task or tasks.open_task(
            config.task.name,
            config.train.seed,
            **config.task.options(),
            count_tokens=lambda prompt: count_tokens(self.policy, prompt, self.settled.chat),
            rows=given.rows,
            graded=config.reward.graded,
        )
        check_isolation(self.task)
        if self.start is not None:
            self.start.check_data(self.folder, config, self.task)

    def _open_frozen_models(self) -> None:
        """What the objective compares the policy with: a reference, a teacher, or neither."""
        config = self.config
        # an adapter that is switched off leaves the reference; full training keeps a copy
        needs_reference = bool(config.objective.kl) and not self.policy.has_adapter
        self.reference = models.frozen_copy(self.policy) if needs_reference else None
        teacher = config.train.teacher
        self.teacher = open_teacher(teacher, self.policy) if teacher else None

    def _open_sampling(self, scorer: Scorer, undo: contextlib.ExitStack) -> None:
        """The engine, and what makes batches of its responses and their scores."""
        config, chat = self.config, self.settled.chat
        self.sampler = open_engine(config, self.policy)
        undo.callback(close_engine, self.sampler)
        self.collector = Collector(
            config,
            self.policy,
            self.sampler,
            self.task,
            scorer,
            chat=chat,
            decay=getattr(self.objective.difficulty, "decay", 1.0),
        )
        self.batches = open_batches(self.collector)

    def _begin(self, resume: bool) -> None:
        """The first files of the run, and the state it begins with."""
        self.journal = Journal(self.config, self.folder, self.start)
        if self.start is not None:
            self.journal.begin(
                self.policy.device, self.start.record, self.given.record(), resume=resume
            )
        state = self._restored() if resume else None
        self.health = Health(self.config, self.folder, self.objective.aggregation.name)
        longest = self.collector.params.max_tokens
        self.updater = Updater(self.config, self.objective, self.policy, self.reference, longest)
        self.token_credit = TokenCredit(self.config, self.updater, self.policy, self.teacher)
        if state is not None:
            self._resume(state)

    def train(self) -> TrainResult:
        """`run`, and what came of it."""
        self.run()
        lines, evaluations = read_lines(self.folder.metrics), read_lines(self.folder.eval)
        return TrainResult(
            step=self.step,
            metrics=lines[-1] if lines else {},
            evaluation=evaluations[-1] if evaluations else {},
            run_dir=self.run_dir,
            stopped_by=self.callbacks.stopped_by,
        )

    def evaluate(self) -> dict[str, Any]:
        """The held-out prompts, sampled with the weights as they are now. Nothing is written."""
        self.held_out = self.held_out or self._held_out()
        if self.ended:  # vLLM, where it was the sampler, has given its memory back
            self.sampler = native_sampler(self.policy)
        with self.updater.whole():
            return self._sampled().metrics

    def run(self) -> None:
        """Train to the end, or raise: RunError with a sentence for the user, Interrupted with the
        command to resume.
        """
        terminal = self.journal.open_terminal(self.step)
        self.updater.say = lambda text: terminal.say(f"step {self.step:4d}  {text}")
        self._say_opening(terminal)
        begun = time.monotonic()
        try:
            with graceful_stop() as stopping:
                # Before the first step, so that every curve begins with the model as it was given.
                if self.step == 0:
                    self._evaluate()
                while self.step < self.config.train.steps and not self._asked_to_end():
                    self._step()
                    self._after_step(stopping)
                self._average()
                self.journal.ended()
            self._close(time.monotonic() - begun)
        finally:
            self.journal.close()
            close_engine(self.sampler)
            self.folder.unlock()
            self.ended = True
            self.batches.close()  # last: it may wait, and Ctrl-C then leaves nothing undone

    def _say_opening(self, terminal: Terminal) -> None:
        """How the run begins, or goes on."""
        if self.start is not None and self.start.sentence:
            terminal.say(self.start.sentence)
        header = announce.header(
            self.folder,
            self.updater,
            self.batches,
            held_out=len(self.held_out),
            frozen=sum(model is not None for model in (self.reference, self.teacher)),
            kernels=self.kernels,
        )
        for line in header:
            terminal.say(line)
        for change in self.changed:
            terminal.warn(change)
        announce.settled(self.settled, self.objective, self.task, terminal)

    def _say_compiled(self) -> None:
        """After the first step on CUDA, which is slow where kernels had to be compiled."""
        before, self.kernels = self.kernels, None
        if before is None or self.policy.device.type != "cuda":
            return
        if said := announce.kernels_after(before, self.step):
            self.journal.terminal.say(said)

    def _close(self, seconds: float) -> None:
        lines = announce.closing(
            self.config,
            self.folder,
            self.given,
            read_lines(self.folder.eval),
            step=self.step,
            seconds=seconds,
            stopped_by=self.callbacks.stopped_by,
            weights=self.weights,
        )
        for line in lines:
            self.journal.terminal.say(line)

    def _after_step(self, stopping: Stopping) -> None:
        """Evaluate and write a checkpoint where it is time; raise where the run must not go on."""
        config = self.config
        done = self.step == config.train.steps or self._asked_to_end()
        self._say_compiled()
        problem = self.health.problem()
        wanted = stopping.wanted or self.journal.terminal.reader_gone
        stop = any(ranks.gather(wanted))  # all ranks stop after the same step
        if config.eval.every and (self.step % config.eval.every == 0 or done):
            self._evaluate()
            done = done or self._asked_to_end()
        is_best = self.best.step == self.step
        due = problem or stop or is_best or self.step % config.train.checkpoint_every == 0
        if (done and self.weights) or (due and not done):
            self._checkpoint()
        if problem:
            raise RunError(problem)
        if stop and not done:
            raise Interrupted(
                f"stopped after step {self.step}; go on with: {resume_command(self.folder)}"
            )

    def _asked_to_end(self) -> bool:
        """Whether a callback asked for the end: of the first process, and so of all."""
        if self.callbacks.callbacks:
            asked = ranks.gather(self.callbacks.stopped_by)
            self.callbacks.stopped_by = next(filter(None, asked), "")
        return bool(self.callbacks.stopped_by)

    def _call(self, event: str, what: Any) -> None:
        if ranks.me() == 0:
            self.callbacks.call(event, self.step, what)

    def _step(self) -> None:
        start = time.perf_counter()
        self.step += 1
        batch = self.batches.take(self.step, self.updater)
        metrics = statistics(batch) | self.batches.metrics
        seconds = {**self.batches.seconds, "log": self.log_seconds}
        informative = False
        if self.health.failing.see(batch.tallies) or len(batch.texts) == 0:
            metrics = {
                "reward/mean": math.nan,
                "completions/mean_length": math.nan,
                "policy_loss": 0.0,
            } | metrics
        else:
            informative = self._learn(batch, metrics, seconds)
        total = time.perf_counter() - start
        metrics["tokens_per_s"] = float(batch.rollouts.lengths.sum()) / total
        metrics |= {f"timing_s/{k}": v for k, v in seconds.items()} | {"timing_s/step": total}
        self.journal.step(self.step, batch, metrics)
        self._call("on_step", metrics)
        self.log_seconds = time.perf_counter() - start - total  # reported with the next step
        grad_norm = metrics["grad_norm"] if informative else None
        clipped = metrics.get("clip_ratio/region", 0.0)
        for warning in self.health.see(self.step, batch, grad_norm, clipped):
            self.journal.terminal.warn(warning)

    def _learn(
        self, batch: StepBatch, metrics: dict[str, float], seconds: dict[str, float]
    ) -> bool:
        """Credit and update, with their numbers into `metrics` and `seconds`;
        whether any response pulled.
        """
        if ranks.me() == 0:
            self.watcher.ask(self.step, batch)  # a second judge, who works beside the update
        # Assigned once for the whole batch: groups and batch statistics must not depend on how the
        # update is split afterwards.
        mark = time.perf_counter()
        credit = self.assign(batch)
        informative = bool(credit.pulled.any())
        if credit.token_advantage is not None:
            # of π_old to the teacher, a token
            metrics["teacher/kl"] = -float(credit.token_advantage.mean())
        seconds["assign"] = time.perf_counter() - mark
        metrics |= self._updated(batch, credit)
        seconds["train"] = time.perf_counter() - mark - seconds["assign"]
        if ranks.me() == 0:
            measured, crossings = self.watcher.settle()
            metrics |= measured
            self.journal.warn(self.step, crossings)
        self.journal.rollouts(self.step, batch, credit, self.policy)
        return informative

    def _updated(self, batch: StepBatch, credit: Credit) -> dict[str, float]:
        try:
            return self.updater.update(batch, credit, self.step)
        except NotFinite as error:
            kept = checkpoint.steps(self.folder.checkpoints)
            raise RunError(
                f"{error}; the weights were left alone, the last checkpoint is "
                f"{f'step {kept[-1]}' if kept else 'none'}: lower optim.lr or optim.clip_norm, or train in float32"
            ) from error

    def assign(self, batch: StepBatch) -> Credit:
        """The credit of a step's responses and, where the run gives tokens one of their own,
        of each token.
        """
        try:
            return self.objective.assign(
                batch.rewards,
                batch.rollouts.prompt.cpu(),
                batch.lengths.cpu(),
                tokens=batch.tokens_in_loss(),
                **self._successes(batch),
                **self.token_credit.of(batch),
            )
        except RangeError as error:
            raise RunError(announce.out_of_range(error)) from error
        except BatchError as error:
            raise RunError(f"step {self.step}: {error}") from error

    def _successes(self, batch: StepBatch) -> dict[str, Any]:
        """What `assign` gets about successes: of the batch, of all that was sampled for it, and of
        earlier steps. Nothing where numbers serve as accuracies and are none, so that the rewards'
        own range is checked there.
        """
        if not bool(((batch.sampled >= 0) & (batch.sampled <= 1)).all()):
            return {}
        known = {"accuracy": batch.accuracy, "batch_accuracy": float(batch.sampled.mean())}
        return known if self.objective.difficulty is None else {**known, "history": batch.past}

    def _held_out(self) -> list[tuple[Prompt, list[int]]]:
        """The evaluation's prompts and their tokens;
        one that cannot be used stops the run before it begins.
        """
        per_level = self.config.eval.per_level
        try:
            prompts = self.task.evaluation(per_level)
        except ValueError as error:
            raise ConfigError(f"eval.per_level = {per_level}: {error}") from error
        return [(prompt, self._encode(prompt)) for prompt in prompts]

    def _evaluate(self) -> None:
        """Sample the held-out prompts and record what came of them."""
        if not self.config.eval.every:
            return
        _, ids = zip(*self.held_out, strict=True)
        with self.updater.whole():
            evaluation = self._sampled()
            result = evaluation.metrics | (
                self._probed(evaluation, ids) if self.config.eval.probe else {}
            )
        if ranks.me() == 0:
            measured, crossings = self.watcher.evaluated(evaluation)
            result |= measured
            self.journal.warn(self.step, crossings)
        # Seen by every rank: all of them decide alike whether this step's checkpoint is the best.
        self.best.see(self.step, result)
        self.journal.evaluation(self.step, evaluation, result)
        self._call("on_evaluation", result)

    def _sampled(self) -> Evaluation:
        """Responses to the held-out prompts, as the configuration asks for them."""
        self.batches.wait()  # two samplers at once would share the device and the judges
        prompts, ids = zip(*self.held_out, strict=True)
        wanted, params = self.config.eval, self.collector.params
        return evaluate(
            self.policy,
            self.sampler,
            self.task,
            prompts,
            ids,
            samples=wanted.samples,
            temperature=wanted.temperature,
            greedy=wanted.greedy,
            max_tokens=params.max_tokens,
            stop=params.stop,
            judge=self.collector.scorer,
            share=ranks.share,
            gather=ranks.gather,
        )

    def _probed(self, evaluation: Evaluation, ids: Sequence[list[int]]) -> dict[str, float]:
        """What the fixed set says; the first evaluation makes it, and a run that goes on reads it."""
        temperature = self.config.eval.temperature
        if self.probe is None and self.step == 0:
            self.probe = Probe.of(self.policy, evaluation, ids, temperature)
            if ranks.me() == 0:
                with writing(self.folder):
                    self.probe.save(self.folder.probe)
        elif self.probe is None:
            self.probe = Probe.load(self.folder.probe)
        return self.probe.metrics(self.policy, temperature) | self.probe.by_start(evaluation)

    def _checkpoint(self) -> None:
        # all ranks take part: weights in shards have their state in shards
        state = {
            **self.updater.state_dict(),
            "uninformative": self.health.uninformative,
            **self.batches.state_dict(),
            "gaming": self.watcher.state_dict(),
        }
        with self.updater.whole():
            if ranks.me() == 0:
                self._write_checkpoint(state)
        ranks.barrier()
        self._call("on_checkpoint", self.folder.checkpoints / f"step-{self.step}")

    def _write_checkpoint(self, state: dict[str, Any]) -> None:
        with writing(self.folder):
            self.folder.sync()  # a checkpoint must not outlive the lines that lead up to it
            weights = dict(self.policy.model.named_parameters()) if self.updater.shards else None
            folder, keep = self.folder.checkpoints, self.config.train.keep
            checkpoint.save(folder, self.step, self.policy, state, keep, weights, self.best.step)
            self.best.link(folder)
            self.batches.history.write(self.folder.prompts)
            assert self.start is not None  # the first process writes
            self.start.record.wrote(self.folder, self.step)  # last: all that goes with it is there

    def _average(self) -> None:
        """The mean of the last checkpoints, where it is wanted."""
        count = self.config.train.average if self.weights else 0
        kept = checkpoint.steps(self.folder.checkpoints)[-count:]
        # a callback may end a run before its first checkpoint
        if count and kept and ranks.me() == 0:
            with writing(self.folder):
                places = [self.folder.checkpoints / f"step-{step}" for step in kept]
                average(places, self.folder.averaged)
            self.journal.terminal.say(
                f"the mean of steps {', '.join(map(str, kept))} is in {self.folder.averaged}"
            )

    def _restored(self) -> dict[str, Any] | None:
        """The state of the last checkpoint, with its weights in the policy;
        what was logged after it is forgotten.
        """
        if self.start is not None:
            with writing(self.folder):
                rewind(self.folder, self.start)
        ranks.barrier()
        kept = checkpoint.steps(self.folder.checkpoints)
        return checkpoint.load(self.folder.checkpoints, kept[-1], self.policy) if kept else None

    def _resume(self, state: dict[str, Any]) -> None:
        skipped, ever_skipped, *uninformative = state["skipped"]
        self.updater.load_state_dict({**state, "skipped": (skipped, ever_skipped)})
        self.best.see_all(read_lines(self.folder.eval))
        # Checkpoints of the first runs have the number behind the updater's two.
        self.health.uninformative = uninformative[0] if uninformative else state["uninformative"]
        self.step = state["step"]
        self.batches.load_state_dict(state)
        if "gaming" in state:  # absent in the first runs
            self.watcher.load_state_dict(state["gaming"])
        if self.start is not None:  # a kill may have come between the checkpoint and these
            self.best.link(self.folder.checkpoints)
            self.batches.history.write(self.folder.prompts)
