"""The benchmark's reference, masks and gathered keys against each other and against the library, on the CPU."""

import time

import attention
import pytest
import report
import timing
import torch
from attention import Heads, error, gathered, reference, row, visible
from lengths import lognormal

HEADS = Heads(query=4, key=2, size=8)
LENGTHS = torch.tensor([5, 2, 1, 9, 3, 4])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(attention, "DEVICE", "cpu")


@pytest.fixture(params=["shared", "repeated"])
def packed(request):
    return row(LENGTHS, 3, 6, shared=request.param == "shared")


def inputs(packed, heads=HEADS):
    g = torch.Generator().manual_seed(0)
    size = (packed.entries, heads.query + 2 * heads.key, heads.size)
    return torch.randn(size, generator=g, dtype=torch.float64).requires_grad_()


def test_the_reference_is_what_the_library_computes(packed):
    qkv = inputs(packed)
    d = torch.randn(packed.entries, HEADS.query, HEADS.size, dtype=torch.float64)
    found = [attention.ours(HEADS, packed).attend(qkv), reference(qkv, HEADS, packed)]
    gradients = [torch.autograd.grad(out, qkv, d)[0] for out in found]
    assert error(found[0], found[1]) < 1e-12
    assert error(gradients[0], gradients[1]) < 1e-12


def test_the_mask_shows_each_query_the_keys_of_its_segment(packed):
    mask = visible(packed)
    seen = mask(0, 0, torch.arange(packed.entries)[:, None], torch.arange(packed.entries)[None, :])
    for own, keys in zip(packed.own, packed.keys, strict=True):
        for query in own:
            assert seen[query].nonzero().flatten().tolist() == [k for k in sorted(keys) if k <= query]


def test_gathered_keys_lie_where_their_lengths_say(packed):
    at, cu_q, cu_k, most_q, most_k = gathered(packed)
    assert (at is None) == all(not seen for seen in packed.seen)
    assert (cu_q.diff().max(), cu_k.diff().max()) == (most_q, most_k)
    assert cu_q[-1] == packed.entries
    order = range(packed.entries) if at is None else at.tolist()
    for i, keys in enumerate(packed.keys):
        assert list(order)[cu_k[i] : cu_k[i + 1]] == keys


def test_repeating_prompts_changes_no_output_of_a_response():
    """Shared and repeated rows are two layouts of one computation."""
    rows = [row(LENGTHS, 3, 6, shared=shared) for shared in (True, False)]
    g = torch.Generator().manual_seed(0)
    prompts = torch.randn(2, 6, 8, 8, generator=g, dtype=torch.float64)
    responses = [torch.randn(n - 1, 8, 8, generator=g, dtype=torch.float64) for n in LENGTHS.tolist()]
    laid_out = [
        torch.cat([*prompts, *responses]),
        torch.cat([torch.cat([prompts[i // 3], response]) for i, response in enumerate(responses)]),
    ]
    outputs = [reference(qkv, HEADS, r) for qkv, r in zip(laid_out, rows, strict=True)]
    places, start = [], 0
    for response in responses:
        places.append(torch.arange(start + 6, start + 6 + len(response)))
        start += 6 + len(response)
    torch.testing.assert_close(outputs[0][12:], outputs[1][torch.cat(places)])


@pytest.mark.parametrize("name", ["ours", "sdpa_padded", "sdpa_each"])
def test_what_runs_on_the_cpu_agrees_with_the_reference(name, monkeypatch):
    monkeypatch.setattr(attention, "seconds", lambda call, **_: call() is not None and 0.001)
    case = attention.case(HEADS, row(LENGTHS, 3, 6, shared=False), torch.float32)
    found = attention.measure(name, case, 60)
    assert found["error"] < 1e-5
    assert found["gradient_error"] < 1e-5
    assert found["both_ms"] == 1


def test_a_peer_without_backward_keeps_its_forward_figure(monkeypatch):
    monkeypatch.setattr(attention, "seconds", lambda call, **_: call() is not None and 0.001)
    case = attention.case(HEADS, row(LENGTHS, 3, 6, shared=True), torch.float32)
    attend = lambda qkv: reference(qkv, HEADS, case.row).detach()  # noqa: E731
    monkeypatch.setitem(attention.ANY, "fa3", lambda heads, r: attention.Attention(attend, {}))
    found = attention.measure("fa3", case, 60)
    assert found["forward_ms"] == 1
    assert "does not require grad" in found["backward_failed"]


def test_rows_of_the_benchmark_have_the_entries_it_names():
    lengths = lognormal(attention.PROMPTS * attention.GROUP, attention.MEAN, attention.CV, attention.LONGEST)
    sizes = [row(lengths, attention.GROUP, attention.PROMPT, shared=shared).entries for shared in (True, False)]
    assert 28_000 < sizes[0] < 30_000
    assert sizes[1] - sizes[0] == attention.PROMPTS * (attention.GROUP - 1) * attention.PROMPT


def test_attention_over_prompts_agrees_and_what_is_missing_is_a_line(monkeypatch):
    monkeypatch.setattr(attention, "seconds", lambda call, **_: call() is not None and 1.0)
    found = attention.prefill(Heads(query=4, key=2, size=16), 32, tokens=96, dtype=torch.float32)
    for name in ("sdpa_flash", "sampler", "ours"):
        assert found[name]["error"] < 1e-5
        assert found[name]["tflops"] == pytest.approx(2 * 4 * 16 * 3 * 32**2 / 1e12)
    assert "failed" in found["sdpa_cudnn"]


def test_prompts_of_one_length_in_one_call_are_the_reference():
    packed = row(torch.full((3,), 2), 1, 7, shared=False)
    qkv = inputs(packed)
    attend = attention.sdpa_equal(torch.nn.attention.SDPBackend.MATH, HEADS, packed).attend
    assert [len(x) for x in packed.own] == [8, 8, 8]
    assert error(attend(qkv), reference(qkv, HEADS, packed)) < 1e-12


def test_a_peer_that_fails_or_takes_too_long_is_a_line():
    def missing():
        import surely_not_installed  # noqa: F401

    def broken():
        raise RuntimeError("no kernel\nfor this card")

    assert timing.attempt(missing, 600) == {"failed": "not installed (surely_not_installed)"}
    assert timing.attempt(broken, 600) == {"failed": "RuntimeError: no kernel"}
    assert timing.attempt(dict, 0) == {"failed": "no time left"}
    assert timing.attempt(lambda: {"ms": 1}, 600) == {"ms": 1}
    slow = timing.attempt(lambda: time.sleep(600), 0.05)
    assert slow["failed"].startswith("TimeoutError: took longer than")


def test_calls_of_one_commit_add_up_and_others_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "commit", lambda: "abc")
    assert report.earlier("attention") == {}
    report.write("attention", {"results": {"a": 1}})
    assert report.earlier("attention") == {"a": 1}
    monkeypatch.setattr(report, "commit", lambda: "def")
    assert report.earlier("attention") == {}
