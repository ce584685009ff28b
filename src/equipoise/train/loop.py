"""The training loop: task → rollouts → rewards → assign → micro-batches → loss → optimizer → logs, checkpoint, eval.

One process by default; under `torchrun` every rank samples and trains its share, and the numbers stay those of one.
A step whose numbers are not finite is skipped and counted, never applied. A killed run resumes bit for bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import math
import platform
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from equipoise import __version__, tasks
from equipoise import policy as models
from equipoise.evaluate import evaluate, line
from equipoise.objective import Credit, LossOutput, merge_metrics, response_ids
from equipoise.rollout import sampler as open_sampler
from equipoise.rollout.vllm import VllmSampler
from equipoise.tasks import Prompt
from equipoise.train import checkpoint, ranks
from equipoise.train.batch import Collector, StepBatch, encode_prompt, statistics, write_rollouts
from equipoise.train.claim import check_claim, flat
from equipoise.train.config import Config, ConfigError, OptimConfig, dump
from equipoise.train.folder import RunError, RunFolder, append, replace
from equipoise.train.micro import MicroBatch, Share
from equipoise.train.mismatch import Mismatch
from equipoise.train.mismatch import metrics as mismatch_metrics
from equipoise.train.optimizer import AdamW
from equipoise.train.planner import Plan, plan
from equipoise.train.progress import Terminal
from equipoise.train.stopping import graceful_stop
from equipoise.train.trackers import open_trackers

if TYPE_CHECKING:
    from equipoise.train.shard import Shards

T = TypeVar("T")
TROUBLES_PER_STEP = 20  # kept in troubles.jsonl
# Of the later updates of a batch, what tells how far they went.
LAST_UPDATE = ("policy_loss", "approx_kl", "clip_ratio/region")


class Interrupted(RunError):
    """Stopped by Ctrl-C or SIGTERM after the step it was in; the checkpoint is written."""


class Trainer:
    def __init__(self, config: Config, *, resume: bool = False) -> None:
        config.check()
        ranks.start()
        if config.rollout.prompts < ranks.count():
            raise ConfigError(
                f"rollout.prompts = {config.rollout.prompts}: the rule is at least one for each of the {ranks.count()} "
                "processes"
            )
        if config.rollout.engine == "vllm" and ranks.count() > 1:
            raise ConfigError(f'rollout.engine = "vllm": the rule is one process, not {ranks.count()}; use native')
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
                d.name, config.train.seed, columns=d.columns, verifier=d.verifier or None, suffix=d.suffix,
                strict=d.strict, dedupe=d.dedupe, max_prompt_chars=d.max_prompt_chars,
                max_prompt_tokens=d.max_prompt_tokens, held_out=d.held_out or None, avoid=d.avoid, gym=d.gym,
                count_tokens=lambda prompt: len(encode_prompt(policy(), prompt, d.chat)),
            )  # fmt: skip
            self.policy = policy()
            if config.train.shard and not self.policy.is_llama_like:
                raise ConfigError(f"train.shard = true: the rule is a Llama-like model, and {m.name} is none")
            self.reference = models.frozen_copy(self.policy) if config.objective.kl and not m.lora_rank else None
            self.vllm = config.rollout.engine == "vllm"
            self.exact = config.rollout.exact or self.vllm  # log π_old is the trainer's, not the sampler's
            self.sampler = (
                VllmSampler(self.policy, memory=config.rollout.engine_memory)
                if self.vllm
                else open_sampler(self.policy)
            )
            if isinstance(self.sampler, VllmSampler):
                undo.callback(self.sampler.close)
            self.collector = Collector(config, self.policy, self.sampler, self.task)
            self.held_out = self._held_out() if config.eval.every else []
            self.updates = 0  # optimizer steps done
            self.plan: Plan | None = None  # made when there is something to train on
            self.say: Callable[[str], None] = lambda text: None
            self.skipped = self.uninformative = 0  # in a row
            self.skipped_total = 0
            self.unscored = ""  # why too many responses of the last step have no score
            self.log_seconds = 0.0
            first = ranks.me() == 0
            self.trackers = open_trackers(config.log, self.folder.path, flat(config)) if first else []
            with self._writing():
                if first:
                    replace(self.folder.config, dump(config))
                    if not resume:
                        replace(self.folder.environment, json.dumps(_environment(self.policy.device), indent=2) + "\n")
                state = self._restored() if resume else None
            sharded = config.train.shard and ranks.count() > 1
            self.shards = _shards(self.policy) if sharded else None
            self.reference_shards = _shards(self.reference) if sharded and self.reference else None
            o, trained = config.optim, self.shards.parameters if self.shards else self.policy.parameters()
            self.optimizer = AdamW(trained, betas=(o.betas[0], o.betas[1]), weight_decay=o.weight_decay, state=o.state)
            self.parameters = self.optimizer.masters
            if state is not None:
                self._resume(state)
            undo.pop_all()

    def run(self) -> None:
        """Train to the end, or raise: RunError with a sentence for the user, Interrupted with the command to resume."""
        c = self.config
        terminal = Terminal(c.train.out, c.train.steps, self.step, c.log.terminal and ranks.me() == 0)
        self.say = terminal.say
        if isinstance(self.task, tasks.Dataset):
            terminal.say(str(self.task.summary))
        try:
            with graceful_stop() as stopping:
                if self.step == 0:
                    self._evaluate(terminal)
                while self.step < c.train.steps:
                    self._step(terminal)
                    done = self.step == c.train.steps
                    stuck = self.uninformative >= c.train.max_uninformative or bool(self.unscored)
                    stop = any(ranks.gather(stopping.wanted))  # all ranks stop after the same step
                    if c.eval.every and (self.step % c.eval.every == 0 or done):
                        self._evaluate(terminal)
                    if done or stuck or stop or self.step % c.train.checkpoint_every == 0:
                        self._checkpoint()
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
        with self._whole():
            batch = self.collector.collect(self.step)
        metrics = statistics(batch, self.collector.params.max_tokens)
        seconds = {**self.collector.seconds, "log": self.log_seconds}
        informative = False
        if len(batch.texts) == 0:
            metrics |= {"reward/mean": math.nan, "completions/mean_length": math.nan, "policy_loss": 0.0}
        else:
            mark = time.perf_counter()
            credit = self.objective.assign(
                batch.rewards, batch.rollouts.prompt.cpu(), batch.lengths.cpu(),
                tokens=_kept_tokens(batch) if self.objective.cancellation == "prefix" else None,
                history=self._success_rates(batch.past),
            )  # fmt: skip
            informative = bool((credit.advantage != 0).any())
            seconds["assign"] = time.perf_counter() - mark
            metrics |= self._update(batch, _to(credit, self.policy.device))
            seconds["train"] = time.perf_counter() - mark - seconds["assign"]
            every = self.config.log.rollouts_every
            if every and ranks.me() == 0 and (self.step == 1 or self.step % every == 0):
                with self._writing():
                    write_rollouts(self.folder.rollouts, self.step, batch, credit)
        total = time.perf_counter() - start
        metrics["tokens_per_s"] = float(batch.rollouts.lengths.sum()) / total
        metrics |= {f"timing_s/{k}": v for k, v in seconds.items()} | {"timing_s/step": total}
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
            terminal.once(subject, f"{subject}: {_last_line(trouble['reason'])} (see {self.folder.troubles})")
        unscored = batch.unscored / batch.kinds.total()
        if unscored > self.config.reward.max_unscored:
            self.unscored = f"{unscored:.0%} of the responses have no score ({_told(batch)})"
        self.log_seconds = time.perf_counter() - start - total  # told with the next step
        self.uninformative = 0 if informative else self.uninformative + 1

    def _success_rates(self, past: Tensor) -> Tensor | None:
        """Mean rewards of earlier steps on the [0, 1] scale of the difficulty that asks for them."""
        difficulty = self.objective.difficulty
        return None if difficulty is None else difficulty.rate(past).clamp(0, 1)  # NaN stays NaN

    def _update(self, batch: StepBatch, credit: Credit) -> dict[str, float]:
        """`train.updates` optimizer steps on the batch; the metrics are those of the first, where ρ = 1.

        A batch that nothing pulls on leaves the weights alone: momentum is no reason to move them.
        """
        c = self.config
        out = {"policy_loss": 0.0, "grad_norm": 0.0, **{name: float(x) for name, x in credit.metrics.items()}}
        share = self._share(batch, credit)
        if not any(ranks.gather(len(share.rows))):
            return out | {"lr": self._rate(), "skipped": float(self.skipped_total)}
        self.idle_passes = max(ranks.gather(len(share.parts))) - len(share.parts)
        self._fitting(share, self._compare)
        for k in range(c.train.updates):
            outputs, apart = self._fitting(share, functools.partial(self._gradients, credit=credit, first=k == 0))
            norm = self._sum_gradients()
            everyone = [o for part in ranks.gather(outputs) for o in part]
            self._apply(norm, all(bool(o.ok) for o in everyone) and math.isfinite(float(norm)))
            metrics = {name: float(x) for name, x in merge_metrics(everyone).items()}
            if k == 0:
                everywhere = [m for part in ranks.gather(apart) for m in part]
                metrics |= mismatch_metrics(everywhere, self.objective.mismatch)
            else:
                metrics = {f"{name}/last_update": metrics[name] for name in LAST_UPDATE}
            out |= metrics
        return out | {"grad_norm": float(norm), "lr": self._rate(), "skipped": float(self.skipped_total)}

    def _sum_gradients(self) -> Tensor:
        """Over all ranks; returns the norm of the whole."""
        if self.shards:
            self.shards.take_gradients()  # summed by the backward passes
        else:
            ranks.sum_gradients(self.parameters)
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        return ranks.norm_of_all(norm) if self.shards else norm

    def _whole(self) -> contextlib.AbstractContextManager[None]:
        """Around whatever reads the weights themselves."""
        return self.shards.whole() if self.shards else contextlib.nullcontext()

    def _fill_up(self, shards: Shards | None, *, backward: bool = False) -> None:
        """Ranks that share the weights make as many passes as the one that has most to do."""
        if shards is not None:
            for _ in range(self.idle_passes):
                shards.idle_pass(backward=backward)

    def _apply(self, norm: Tensor, fine: bool) -> None:
        c = self.config
        if not fine:
            self.skipped += 1
            self.skipped_total += 1
            if self.skipped >= c.train.max_skipped:
                kept = checkpoint.steps(self.folder.checkpoints)
                raise RunError(
                    f"{self.skipped} updates in a row had log-probabilities or gradients that are not finite; the "
                    f"weights were left alone, the last checkpoint is {f'step {kept[-1]}' if kept else 'none'}: lower "
                    "optim.lr or optim.clip_norm, or train in float32"
                )
            return
        self.skipped = 0
        if c.optim.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, c.optim.clip_norm, norm)
        self.updates += 1
        self.optimizer.step(self._rate())

    def _rate(self) -> float:
        return learning_rate(self.config.optim, self.updates, self.config.train.steps * self.config.train.updates)

    def _share(self, batch: StepBatch, credit: Credit) -> Share:
        """What this rank trains on: responses that nothing pulls on (no advantage, no KL, no entropy bonus) need no
        forward pass, unless their group must be whole."""
        c, group = self.config, batch.rollouts.prompt.cpu()
        pulled = credit.advantage.cpu() != 0
        if c.objective.kl or c.objective.entropy_bonus:
            pulled = torch.ones_like(pulled)
        elif self.objective.needs_whole_groups:
            pulled = torch.isin(group, group[pulled])
        mine = torch.isin(group, torch.tensor(ranks.share(range(len(batch.prompts)))))
        rows = (mine & pulled & (batch.lengths.cpu() > 0)).nonzero()[:, 0]
        share = Share.of(batch.rollouts, rows)
        if self.plan is None and any(ranks.gather(len(rows))):
            self.plan = self._plan(share)
            if self.plan.said:
                self.say(self.plan.said)
        if self.plan is not None:
            share.cut(c.train.micro_batch, self.plan.tokens, self.objective.needs_whole_groups)
        return share

    def _plan(self, share: Share) -> Plan:
        """How much one pass may hold: as the configuration says or, if it does not, what fits."""
        c, r = self.config, self.config.rollout
        if c.train.micro_batch or c.train.micro_tokens:
            return Plan(c.train.micro_tokens, self.policy.gradient_checkpointing, "")
        prompt, response = max(map(len, share.rollouts.prompts)), self.collector.params.max_tokens
        return plan(
            self.policy, total=r.prompts * (prompt + r.group_size * response), cap=c.train.memory_cap,
            largest=prompt + response * (r.group_size if self.objective.needs_whole_groups else 1),
            to_come=self.optimizer.bytes_to_come(), clear=self.optimizer.zero_grad,
        )  # fmt: skip

    def _fitting(self, share: Share, work: Callable[[Share], T]) -> T:
        """Do it; where memory runs out, again from its beginning, with half as many tokens a pass."""
        while True:
            try:
                return work(share)
            except torch.OutOfMemoryError as error:
                reason = str(error).partition(". ")[0]
            if self.shards:  # the other ranks are in the middle of this pass
                raise RunError(f"{reason}: start another run with lower train.micro_tokens or train.micro_batch")
            # Only here are the failed pass' tensors gone.
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()
            self._shrink(share, reason)

    def _shrink(self, share: Share, reason: str) -> None:
        """Smaller micro-batches for the rest of the run or, where there are none, gradient checkpointing."""
        assert self.plan is not None
        most = share.largest_pass
        share.cut(self.config.train.micro_batch, most // 2, self.objective.needs_whole_groups)
        checkpointing = self.policy.gradient_checkpointing
        if share.largest_pass < most:
            self.plan = dataclasses.replace(self.plan, tokens=most // 2)
            then = f"going on with {most // 2:,}"
        elif not checkpointing:
            self.policy.checkpoint_gradients()
            self.plan = dataclasses.replace(self.plan, checkpointing=True)
            then = "which cannot be cut; going on with gradient checkpointing"
        else:
            raise RunError(
                f"{reason}: {most:,} tokens in one piece do not fit, even with gradient checkpointing; lower "
                "rollout.max_tokens, or optim.state = 8bit or model.lora_rank for smaller optimizer state"
            )
        self.say(f"step {self.step}: memory ran out with {most:,} tokens a pass, {then}")

    @torch.no_grad()
    def _compare(self, share: Share) -> None:
        """What the loss compares with: log π_ref and log π_old, which is the sampler's or, with `rollout.exact` or
        vLLM, what the trainer says before its first update."""
        temperature = self.config.rollout.temperature
        if self.config.objective.kl:
            share.ref = share.each(
                lambda pack: models.reference_logprobs(self.policy, self.reference, pack, temperature=temperature)
            )
            self._fill_up(self.reference_shards)
        if self.exact:
            share.old = share.each(
                lambda pack: models.token_logprobs(self.policy, pack, temperature=temperature).logprobs
            )
            self._fill_up(self.shards)

    def _gradients(self, share: Share, *, credit: Credit, first: bool) -> tuple[list[LossOutput], list[Mismatch]]:
        """Gradients of all micro-batches, summed, and what the losses saw; in a first update also the mismatch."""
        self.optimizer.zero_grad()
        outputs, apart = [], []
        for part in share.parts:
            output = self._loss(share, part, credit)
            output.loss.backward()
            if first:
                sampler = self._rollout_logprobs(share)[part.tokens]
                lengths = share.rollouts.lengths[part.rows]
                apart.append(Mismatch.of(output.logprobs, sampler, lengths, self.objective.mismatch))
            outputs.append(
                dataclasses.replace(output, loss=output.loss.detach(), logprobs=output.logprobs.new_empty(0))
            )
        self._fill_up(self.shards, backward=True)
        return outputs, apart

    def _rollout_logprobs(self, share: Share) -> Tensor:
        """log π_rollout as the sampler has it; vLLM tells that of what it drew from, top-p and top-k applied."""
        return share.rollouts.logprobs if self.vllm else share.rollouts.policy_logprobs

    def _loss(self, share: Share, part: MicroBatch, credit: Credit) -> LossOutput:
        at = part.tokens
        return models.token_loss(
            self.policy, part.packed, self.objective, share.old[at], credit, share.response[at],
            position=share.position[at], ref_logprobs=None if share.ref is None else share.ref[at],
            rollout_logprobs=self._rollout_logprobs(share)[at] if self.objective.mismatch.function else None,
            temperature=self.config.rollout.temperature, exact=self.exact,
        )  # fmt: skip

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
        with self._whole():
            result = evaluate(
                self.policy, self.sampler, self.task, prompts, ids, samples=c.eval.samples,
                temperature=c.eval.temperature, greedy=c.eval.greedy, max_tokens=self.collector.params.max_tokens,
                stop=self.collector.params.stop, share=ranks.share, gather=ranks.gather,
            )  # fmt: skip
        if ranks.me() == 0:
            with self._writing():
                append(self.folder.eval, {"step": self.step, **result})
            for tracker in self.trackers:
                tracker.log({f"eval/{k}": v for k, v in result.items() if isinstance(v, float)}, self.step)
        terminal.say(f"step {self.step:4d}  held out: {line(result)}")

    def _checkpoint(self) -> None:
        optimizer = self.optimizer.state_dict()
        if self.shards:
            optimizer = self.shards.state_dict(optimizer)
        with self._whole():
            self._write_checkpoint(optimizer)
        ranks.barrier()

    def _write_checkpoint(self, optimizer: dict[str, Any]) -> None:
        if ranks.me() == 0:
            state = {
                "optimizer": optimizer,
                "objective": self.objective.state_dict(),
                "position": self.collector.position,
                "history": self.collector.history.state_dict(),
                "updates": self.updates,
                "plan": None if self.plan is None else (self.plan.tokens, self.plan.checkpointing),
                "skipped": (self.skipped, self.skipped_total, self.uninformative),
            }
            with self._writing():
                self.folder.sync()  # a checkpoint must not outlive the lines that lead up to it
                weights = dict(self.policy.model.named_parameters()) if self.shards else None
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
        optimizer = state["optimizer"]
        self.optimizer.load_state_dict(self.shards.load_state_dict(optimizer) if self.shards else optimizer)
        self.objective.load_state_dict(state["objective"])
        self.step, self.updates = state["step"], state["updates"]
        if state.get("plan"):  # absent in the first runs
            self.plan = Plan(state["plan"][0], state["plan"][1], "")
            if self.plan.checkpointing and not self.policy.gradient_checkpointing:
                self.policy.checkpoint_gradients()
        self.collector.position = state["position"]
        self.collector.history.load_state_dict(state.get("history", {"seen": {}}))  # absent in the first runs
        self.skipped, self.skipped_total, self.uninformative = state["skipped"]


def learning_rate(o: OptimConfig, update: int, total: int) -> float:
    """The rate of optimizer step `update` (from 1): a linear warm-up, then constant, or linear or cosine to 0.

    0 is reached one step after the last: a step at 0 would be a batch of rollouts for nothing.
    """
    if update <= o.warmup:
        return o.lr * update / max(o.warmup, 1)
    left = 1 - (update - o.warmup) / (total - o.warmup + 1)
    shape = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left)))}
    return o.lr * shape[o.schedule]


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
    return f"{many}; the first: {_last_line(batch.troubles[0]['reason'])}" if batch.troubles else "masked"


def _last_line(reason: str) -> str:
    """For the terminal, which must not obey what a model wrote."""
    line = (reason.strip().splitlines() or ["no reason given"])[-1][:200]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


def _shards(policy: models.Policy) -> Shards:
    from equipoise.train.shard import Shards  # FSDP takes two seconds to import

    return Shards(policy)


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


def _to(credit: Credit, device: torch.device) -> Credit:
    if device.type == "cpu":
        return credit
    moved = {f.name: getattr(credit, f.name) for f in dataclasses.fields(credit)}
    moved |= {k: v.to(device) for k, v in moved.items() if isinstance(v, Tensor)}
    groups = dataclasses.replace(
        credit.groups, index=credit.groups.index.to(device), first=credit.groups.first.to(device)
    )
    return Credit(**{**moved, "groups": groups, "metrics": {k: v.to(device) for k, v in credit.metrics.items()}})
