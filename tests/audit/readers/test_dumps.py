"""Dumps of prime-rl, slime, SkyRL and OpenRLHF, written here as their writers write them, give one audit.

Schemas: prime-rl at 559b4477 with verifiers 0.4.0 (`Episode.to_record`), slime at 624b824a (`Sample.to_dict`),
SkyRL 0.3.0 (`TensorBatch.__getstate__`, `dump_per_dataset_eval_results`), OpenRLHF 0.11.2 (`Experience`).
"""

import dataclasses
import json
import pickle
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from equipoise.audit import AuditError, from_table, measure, read
from equipoise.audit.readers import openrlhf
from tests.audit.synthetic import Law

COLUMNS = Law(right=12, wrong=16).draw(24, seed=3, steps=2)
MASKED = 3  # tokens of a template or a tool, which the policy did not sample


def tokens(i):
    """Ids of a response, different for each row."""
    return [(7 * i + t) % 97 for t in range(COLUMNS["length"][i])]


def table():
    """What every dump below must read as."""
    return COLUMNS | {"tokens": [tokens(i) for i in range(len(COLUMNS["reward"]))]}


def same(log, other, *, reward=True):
    for name in ("length", "step", "group", "prompt", "tokens") + (("reward",) if reward else ()):
        np.testing.assert_array_equal(getattr(log, name), getattr(other, name), err_msg=name)


def episode(i, *, ok=True, cut=False, turns=1):
    """One line of prime-rl's traces.jsonl; none are None, and states and tensors are not written."""
    ids = tokens(i)
    node = {
        "parent": 0, "message": {"role": "assistant", "content": "…"}, "sampled": True, "timestamp": 1.0,
        "token_ids": [1] * MASKED + ids, "mask": [False] * MASKED + [True] * len(ids), "is_content": [], "logprobs": [],
    }  # fmt: skip
    asked = {"message": {"role": "user", "content": "?"}, "sampled": False, "token_ids": [5, 6], "mask": [False] * 2}
    trace = {
        "version": 1, "id": f"trace{i}", "task": {"type": "Task", "data": {}},
        "agent": {"config": {}, "trainable": True},
        "nodes": [asked] + [node] * turns, "calls": [{"node": 1, "finish_reason": "length" if cut else "stop"}],
        "rewards": {"right": {"score": float(COLUMNS["reward"][i]), "weight": 0.5}, "again":
                    {"score": float(COLUMNS["reward"][i]), "weight": 0.5}} if ok else {},
        "metrics": {}, "info": {}, "is_completed": True, "ok": ok, "errors": [], "num_output_tokens": len(ids),
    }  # fmt: skip
    judge = {**trace, "id": f"judge{i}", "agent": {"config": {}, "name": "judge", "trainable": False}}
    return {
        "id": f"e{i}", "env": {"id": "gsm8k"},
        "task": {"type": "Task", "data": {"idx": i}, "key": str(COLUMNS["prompt_id"][i])},
        "group": {"id": f"g{COLUMNS['prompt_id'][i]}"}, "ok": ok, "errors": [], "traces": [judge, trace],
    }  # fmt: skip


def prime_rl(folder, rows, subset="effective", **options):
    for i in rows:
        file = folder / "rollouts" / f"step_{COLUMNS['step'][i]}" / "train" / subset / "traces.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a") as out:
            out.write(json.dumps(episode(i, **options)) + "\n")
    return folder


ALL = range(len(COLUMNS["reward"]))


def test_prime_rl(tmp_path):
    log = read(prime_rl(tmp_path, ALL))
    same(log, from_table(table()))
    assert (log.source, log.kept) == ("prime-rl", None)
    assert log.truncated is not None
    assert not log.truncated.any()
    same(read(tmp_path / "rollouts"), log)
    (tmp_path / "rollouts" / "step_0" / "eval" / "all").mkdir(parents=True)  # an evaluation lies beside and stays there
    assert len(read(tmp_path)) == len(log)


def test_prime_rl_says_which_responses_were_trained_on(tmp_path):
    dropped = [i for i in ALL if COLUMNS["prompt_id"][i] in ("p3", "p20")]
    prime_rl(tmp_path, ALL, "all", cut=True)
    prime_rl(tmp_path, [i for i in ALL if i not in dropped])
    log = read(tmp_path)
    assert log.kept is not None
    assert (~log.kept).sum() == len(dropped)
    assert log.truncated.all()
    assert measure(log).overall.responses == len(ALL) - len(dropped)
    rest = [i for i in ALL if i not in dropped]
    only = from_table({k: v[rest] for k, v in COLUMNS.items()} | {"tokens": [tokens(i) for i in rest]})
    assert measure(log).overall.objectives == measure(only).overall.objectives


def test_prime_rl_leaves_out_what_failed_and_what_stayed_alone(tmp_path):
    first = [i for i in ALL if COLUMNS["prompt_id"][i] == "p0"]
    prime_rl(tmp_path, [i for i in ALL if i not in first[1:]])
    prime_rl(tmp_path, first[1:], ok=False)
    log = read(tmp_path)
    assert len(log) == len(ALL) - len(first)
    assert any("alone of their group" in note for note in log.notes)


def test_prime_rl_counts_all_turns_and_shares_no_prefix_across_them(tmp_path):
    log = read(prime_rl(tmp_path, ALL, turns=2))
    assert log.tokens is None
    assert log.length.sum() == 2 * COLUMNS["length"].sum()


def test_prime_rl_refuses_what_it_does_not_know(tmp_path):
    file = tmp_path / "step_1" / "train" / "effective" / "traces.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"task": {"data": {}}, "env": {}, "traces": [{"nodes": []}]}) + "\n")
    with pytest.raises(AuditError, match="row 1: not an episode as verifiers"):
        read(tmp_path)
    (tmp_path / "traces.jsonl").write_text(json.dumps(episode(0)) + "\n")
    with pytest.raises(AuditError, match="tells the step"):
        read(tmp_path / "traces.jsonl")


def sample(i, **changes):
    """slime's Sample.to_dict()."""
    ids = tokens(i)
    return {
        "group_index": int(COLUMNS["prompt_id"][i][1:]), "index": i, "rollout_id": None,
        "prompt": [{"role": "user", "content": str(COLUMNS["prompt_id"][i])}], "tokens": [5, 6] + ids + [1] * MASKED,
        "response": "…", "response_length": len(ids) + MASKED, "label": "1", "reward": float(COLUMNS["reward"][i]),
        "loss_mask": [1] * len(ids) + [0] * MASKED, "rollout_log_probs": None, "remove_sample": False,
        "status": "completed", "metadata": {}, "spec_info": {}, "prefix_cache_info": {},
    } | changes  # fmt: skip


def slime(folder, **changes):
    for step in np.unique(COLUMNS["step"]):
        rows = [sample(i, **changes) for i in ALL if COLUMNS["step"][i] == step]
        torch.save({"rollout_id": int(step), "samples": rows}, folder / f"rollout_{step}.pt")
    return folder


def test_slime(tmp_path):
    slime(tmp_path)
    torch.save({"rollout_id": 1, "samples": []}, tmp_path / "rollout_eval_1.pt")
    log = read(tmp_path)
    same(log, from_table(table()))
    assert log.source == "slime"
    assert not log.truncated.any()


def test_slime_rewards_by_name_and_samples_that_did_not_count(tmp_path):
    slime(tmp_path, reward={"acc": 1.0, "style": 0.5}, status="truncated")
    with pytest.raises(AuditError, match=r"no column for reward.*acc, style"):
        read(tmp_path)
    log = read(tmp_path, {"reward": "acc+2*style"})
    assert set(log.reward) == {2.0}
    assert log.truncated.all()
    slime(tmp_path, status="aborted")
    with pytest.raises(AuditError, match="no file holds a response with a reward"):
        read(tmp_path)


class Harmful:
    def __reduce__(self):
        return (print, ("code of the file ran",))


def test_torch_files_and_pickles_run_no_code(tmp_path, capsys):
    torch.save({"rollout_id": 1, "samples": [Harmful()]}, tmp_path / "a.pt")
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(Harmful()))
    for name, said in (("a.pt", "without running code"), ("b.pkl", "builtins.print, which is no part of a batch")):
        with pytest.raises(AuditError, match=said):
            read(tmp_path / name)
    assert capsys.readouterr().out == ""


def serialized(value):
    """SkyRL's own form of a tensor; bfloat16 goes through torch."""
    if value.dtype == torch.bfloat16:
        import io

        buffer = io.BytesIO()
        torch.save(value, buffer)
        return {"format": "torch", "data": buffer.getvalue()}
    array = value.numpy()
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}


def skyrl_batch(path, rows, advantage, dtype=torch.float32):
    """A pickle of SkyRL's TrainingInputBatch: left-padded, without rewards and uids, with a row that fills it up."""
    prompt = {p: [5] * (1 + k % 3) + [k] for k, p in enumerate(np.unique(COLUMNS["prompt_id"]))}
    answers, asked = [tokens(i) for i in rows] + [[1]], [prompt[COLUMNS["prompt_id"][i]] for i in rows] + [[9]]
    widest, longest = max(len(a) + len(b) for a, b in zip(asked, answers, strict=True)), max(map(len, answers))

    def left(values, width):
        return [0] * (width - len(values)) + list(values)

    ones = torch.tensor([left([1] * len(a), longest) for a in answers])
    trained = ones.clone().float()
    trained[-1] = 0
    batch = {
        "sequences": torch.tensor([left(p + a, widest) for p, a in zip(asked, answers, strict=True)]),
        "attention_mask": torch.tensor([left([1] * len(p + a), widest) for p, a in zip(asked, answers, strict=True)]),
        "response_mask": ones, "loss_mask": trained, "values": None,
        "advantages": (ones * torch.tensor([*advantage, 0.0])[:, None]).to(dtype),
    }  # fmt: skip
    module = types.ModuleType("skyrl.backends.skyrl_train.training_batch")

    class TrainingInputBatch(dict):
        def __reduce__(self):
            state = {k: None if v is None else serialized(v) for k, v in self.items()}
            return (
                module._rebuild_tensor_batch,
                (TrainingInputBatch, {"batch_dict": state, "metadata": {"pad_size": 1}}),
            )

    def _rebuild_tensor_batch(cls, state):
        raise AssertionError("only SkyRL runs this")

    for thing in (TrainingInputBatch, _rebuild_tensor_batch):
        thing.__module__, thing.__qualname__ = module.__name__, thing.__name__
        setattr(module, thing.__name__, thing)
    parents = ["skyrl", "skyrl.backends", "skyrl.backends.skyrl_train"]
    added = {name: types.ModuleType(name) for name in parents} | {module.__name__: module}
    sys.modules.update(added)
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps(TrainingInputBatch(batch)))
    finally:
        for name in added:
            del sys.modules[name]


def standardised():
    groups = COLUMNS["reward"].reshape(-1, 8)
    return ((groups - groups.mean(1, keepdims=True)) / (groups.std(1, ddof=1, keepdims=True) + 1e-6)).reshape(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_skyrl_batches(tmp_path, dtype):
    for step in (0, 1):
        rows = [i for i in ALL if COLUMNS["step"][i] == step]
        path = tmp_path / "dumped_data" / f"global_step_{step}_training_input.pkl"
        skyrl_batch(path, rows, standardised()[rows], dtype)
    log = read(tmp_path)
    assert log.source == "SkyRL"
    assert not log.rates
    assert any("no rewards" in note for note in log.notes)
    assert sorted(log.length) == sorted(COLUMNS["length"])
    assert log.prompt.max() == 23
    # Under an objective that standardises rewards the advantages give the coefficients that the rewards would.
    found, truth = (measure(x, "dapo", ["balanced"]).overall for x in (log, from_table(table())))
    for name in ("dapo", "balanced"):
        for measured in ("coupling", "mass_imbalance", "exchangeability"):
            got, want = found.objectives[name][measured].value, truth.objectives[name][measured].value
            assert got == pytest.approx(want, rel=1e-3 if dtype == torch.float32 else 1e-2, abs=1e-6)
    assert found.baseline_bias["hard"].value is None
    with pytest.raises(AuditError, match="difficulty weights need success rates"):
        measure(log, "dapo+hadw")


def test_skyrl_batch_with_advantages_of_tokens_is_refused(tmp_path):
    path = tmp_path / "global_step_3_training_input.pkl"
    skyrl_batch(path, range(8), standardised()[:8])
    whole = path.read_bytes()
    value = np.float32(standardised()[0])
    assert whole.count(value.tobytes()) > 1
    path.write_bytes(whole.replace(value.tobytes(), np.float32(9).tobytes(), 1))
    with pytest.raises(AuditError, match="differ between tokens"):
        read(path)


def test_skyrl_evaluations(tmp_path):
    folder = tmp_path / "dumped_evals" / "global_step_20_evals"
    folder.mkdir(parents=True)
    with open(folder / "gsm8k.jsonl", "w") as out:
        for i in ALL:
            score = [0.0, float(COLUMNS["reward"][i])] if i % 2 else float(COLUMNS["reward"][i])
            row = {
                "input_prompt": str(COLUMNS["prompt_id"][i]), "output_response": "x" * int(COLUMNS["length"][i]),
                "score": score, "stop_reason": "length" if i < 8 else "stop", "env_class": "gsm8k", "env_extras": {},
                "data_source": "gsm8k",
            }  # fmt: skip
            out.write(json.dumps(row) + "\n")
    (folder / "aggregated_results.jsonl").write_text('{"eval/all/avg_score": 0.5}\n')
    log = read(folder)
    assert set(log.step) == {20}
    assert log.truncated.sum() == 8
    assert log.reward.sum() == COLUMNS["reward"].sum()
    assert any("evaluation" in note for note in log.notes)


@dataclass
class Experience:
    """The fields of OpenRLHF's that the table needs."""

    prompts: list
    rewards: torch.Tensor
    response_length: torch.Tensor
    truncated: torch.Tensor


def test_openrlhf(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def batch(rows):
        return Experience(
            [str(COLUMNS["prompt_id"][i]) for i in rows], torch.tensor(COLUMNS["reward"][list(rows)]),
            torch.tensor(COLUMNS["length"][list(rows)]), torch.zeros(len(rows), dtype=torch.bool),
        )  # fmt: skip

    rows = [i for i in ALL if COLUMNS["step"][i] == 0]
    made = openrlhf.columns([batch(rows[:16]), batch(rows[16:])], step=0)
    pq.write_table(pa.table(made), tmp_path / "step0.parquet")
    log = read(tmp_path / "step0.parquet")
    same_rows = {k: v[rows] for k, v in COLUMNS.items()}
    np.testing.assert_array_equal(log.reward, from_table(same_rows).reward)
    np.testing.assert_array_equal(log.length, from_table(same_rows).length)
    assert log.source == "OpenRLHF"
    assert not log.truncated.any()
    assert dataclasses.fields(Experience)[0].name == openrlhf.COLUMNS[0]


def test_a_table_says_which_rows_were_kept():
    kept = [p != "p4" for p in COLUMNS["prompt_id"]]
    log = from_table(COLUMNS | {"kept": kept})
    assert (~log.kept).sum() == 8
    with pytest.raises(AuditError, match="2 is not true or false"):
        from_table(COLUMNS | {"kept": [2] * len(kept)})
    with pytest.raises(AuditError, match="no response of the log was kept"):
        measure(COLUMNS | {"kept": [False] * len(kept)})
