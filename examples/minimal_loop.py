"""An RL loop in one file: python examples/minimal_loop.py [--steps 40] [--objective dapo+balanced]

The embedded character model learns to add chains of numbers, on the CPU, in a minute or two.
Everything a trainer does is here once, in order: prompts, samples, rewards, credit, loss, step. Of the library it
uses the objective and the built-in task; the model is plain transformers. Not covered: checkpoints, evaluation on
held-out prompts, a fast sampler, several updates a batch. `equipoise train` has those.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is a folder of the package

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import equipoise as eq
from equipoise.policy.names import ABACUS
from equipoise.tasks import Arithmetic

PROMPTS, GROUP = 32, 16  # per step: prompts, and responses to each
MICRO = 128  # responses that share a backward pass; any number gives the same gradient
LEARNING_RATE = 5e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--objective", default="dapo+balanced", help="a preset, and what to change in it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    task = Arithmetic(seed=options.seed)
    objective = eq.objective.named(options.objective)
    tokenizer = AutoTokenizer.from_pretrained(ABACUS, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(ABACUS).eval()  # eval: the policy that samples is the one that learns
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    print(objective)

    for step in range(options.steps):
        # Each prompt GROUP times; the group of a response is the prompt it answers.
        prompts = [task.prompt(step * PROMPTS + i) for i in range(PROMPTS) for _ in range(GROUP)]
        tokens, attended, is_response = sample(model, tokenizer, [p.text for p in prompts], task.max_tokens)

        texts = tokenizer.batch_decode(tokens[:, -is_response.shape[1] :] * is_response, skip_special_tokens=True)
        verdicts = [task.grade(p, text) for p, text in zip(prompts, texts, strict=True)]
        rewards = torch.tensor([float(v.kind == "correct") for v in verdicts])
        lengths = is_response.sum(1)

        # Credit is given once, to whole groups, before the batch is split into micro-batches.
        credit = objective.assign(rewards, [p.id for p in prompts], lengths)
        optimizer.zero_grad()
        outs = []
        for first in range(0, len(prompts), MICRO):
            rows = slice(first, first + MICRO)
            logprobs = token_logprobs(model, tokens[rows], attended[rows], is_response[rows])
            # The only update on this batch: the policy that sampled is the policy as it is now.
            old_logprobs = logprobs.detach()
            response = first + eq.response_ids(lengths[rows])  # [N]: the row of each token in the whole batch
            out = objective.loss(logprobs, old_logprobs, credit, response)
            out.loss.backward()  # losses of micro-batches add up: nothing is divided by their number
            outs.append(out)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        metrics = eq.merge_metrics(outs)
        print(
            f"step {step:3d}  reward {rewards.mean():.3f}  length {lengths.float().mean():5.1f}  "
            f"gradient {norm:.3f}  length gap {float(metrics['bias/group_length_gap']):+.3f}",
            flush=True,
        )


@torch.no_grad()
def sample(model, tokenizer, texts: list[str], most: int) -> tuple[Tensor, Tensor, Tensor]:
    """tokens [B, P + T], padded on both sides; attended [B, P + T]; is_response [B, T], the end token included."""
    prompt = tokenizer(texts, return_tensors="pt", padding=True)
    # Temperature 1 and no truncation: what is sampled is the policy whose gradient is taken.
    tokens = model.generate(
        **prompt, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=most
    )  # [B, P + T]
    answer = tokens[:, prompt.input_ids.shape[1] :]
    ended = (answer == tokenizer.eos_token_id).cumsum(1)
    is_response = (ended == 0) | ((ended == 1) & (answer == tokenizer.eos_token_id))
    return tokens, torch.cat([prompt.attention_mask, is_response.long()], 1), is_response


def token_logprobs(model, tokens: Tensor, attended: Tensor, is_response: Tensor) -> Tensor:
    """log π of each response token under the model as it is, flat [N], row by row."""
    position_ids = (attended.cumsum(1) - 1).clamp_min(0)
    logits = model(input_ids=tokens, attention_mask=attended, position_ids=position_ids).logits
    width = is_response.shape[1]
    # The logits at a position are those of the token after it.
    logprobs = logits[:, -width - 1 : -1].log_softmax(-1)
    taken = logprobs.gather(-1, tokens[:, -width:, None]).squeeze(-1)
    return eq.flatten(taken, is_response)


if __name__ == "__main__":
    main()
