"""What is put around a question, in one place: a benchmark's, as a user's message and as text for a
model to continue, and a training prompt's, in the words of the papers.

`{question}` stands for the question; nothing else is replaced. A template is part of a result: its
digest is kept with every evaluation. Not covered: few-shot examples, and system messages of one's
own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """`chat`: the user's message where there is a chat template; `completion`: text to go on from.

    `stop` ends a completion: without a template around it,
    a model that has answered goes on with the next question.
    """

    chat: str
    completion: str
    stop: tuple[str, ...] = ()

    def fill(self, question: str, chat: bool) -> str:
        return (self.chat if chat else self.completion).replace("{question}", question)


PROMPTS = {
    # HA-DW, arXiv 2601.08521, Table 8
    "hadw": r"{question} Let's think step by step and output the final answer within \boxed{}.",
    # DAPO, arXiv 2503.14476, and with it Balanced Aggregation: the text its data set holds
    "dapo": (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{question}\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    ),
    # Qwen2.5-Math's evaluation, where the model has no system message
    "qwen": "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
}


def written(question: str, template: str, suffix: str) -> str:
    """A training prompt: the question in the named template ("": alone), then the suffix."""
    return PROMPTS.get(template, "{question}").replace("{question}", question) + suffix


BOXED = r"Please reason step by step, and put your final answer within \boxed{}."
NEXT_PROBLEM = ("\nProblem:",)

TEMPLATES = {
    "math": Template(
        f"{{question}}\n\n{BOXED}",
        f"Problem:\n{{question}}\n\n{BOXED}\n\nSolution:\n",
        NEXT_PROBLEM,
    ),
    "aime": Template(
        f"{{question}}\n\nThe answer is an integer between 0 and 999. {BOXED}",
        f"Problem:\n{{question}}\n\nThe answer is an integer between 0 and 999. {BOXED}\n\nSolution:\n",
        NEXT_PROBLEM,
    ),
    "gsm8k": Template(
        f"{{question}}\n\nThe answer is a number. {BOXED}",
        f"Problem:\n{{question}}\n\nThe answer is a number. {BOXED}\n\nSolution:\n",
        NEXT_PROBLEM,
    ),
    "units": Template(
        f"{{question}}\n\nGive the answer in the unit asked for, without writing the unit. {BOXED}",
        f"Problem:\n{{question}}\n\nGive the answer in the unit asked for, without writing the unit. {BOXED}"
        "\n\nSolution:\n",
        NEXT_PROBLEM,
    ),
    "complete": Template(
        "Complete the following Python function, and write it whole in one ```python block.\n\n"
        "```python\n{question}\n```",
        "{question}",
        ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint", "\n```"),
    ),
    "program": Template(
        "{question}\n\nWrite a Python solution in one ```python block.",
        "Problem:\n{question}\n\nSolution:\n```python\n",
        ("\n```",),
    ),
}
