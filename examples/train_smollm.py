"""Train SmolLM2 (135M) with a reward function of your own on data in memory: `python examples/train_smollm.py`."""

import random
import re

import equipoise as eq

draw = random.Random(0)
PAIRS = [(draw.randint(2, 99), draw.randint(2, 99)) for _ in range(400)]
ROWS = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in PAIRS]
OPTIONS = {"train.out": "runs/sums", "train.steps": 40, "optim.lr": 1e-5, "rollout.prompts": 8, "rollout.group_size": 8,
           "rollout.max_tokens": 48, "task.answer_in": "anywhere", "eval.samples": 4}  # fmt: skip


def last_number(prompt: str, response: str, row: dict) -> float:
    """1 where the last number of the response is the answer; a shorter way there counts a little more."""
    numbers = re.findall(r"\d+", response)
    return float(numbers[-1:] == [row["answer"]]) * (1 - len(response) / 2000)


class Solved(eq.TrainerCallback):
    def on_evaluation(self, step, result):
        return result["acc@4"] > 0.95  # True ends the run


def main(model="smollm", rows=ROWS, **options):
    trainer = eq.Trainer(model=model, dataset=rows, rewards=[last_number], objective="dapo+balanced+hadw",
                         config=OPTIONS | options, callbacks=[Solved()])  # fmt: skip
    print(trainer.train())


if __name__ == "__main__":
    main()
