"""The page about an attack: what it says of one cluster, of none, and how its tables are built."""

from equipoise.study.redteam import page
from equipoise.study.redteam.findings import Exploit, Findings

SUMMARY = {
    "verifier": "math",
    "version": "1",
    "model": "embedded",
    "tried": 900,
    "shapes": 800,
    "seconds": 60.0,
    "honest": 9,
}


def render(exploits):
    found = Findings(clusters={("wrong value", (str(i),)): exploit for i, exploit in enumerate(exploits)})
    phases = {"random search": {"tried": 900, "clusters": len(exploits)}}
    return page.render(found, {**SUMMARY, "phases": phases})


def exploit(response="\\boxed{5≈6}"):
    prompt = "A shop has 563 books and sells 48. How many books are left? Put the final answer in \\boxed{}. " * 3
    return Exploit(prompt, response, "\\boxed{5≈6}", 5, "wrong value", "\\boxed T ≈ N", "random search", 7, 1.0)


def test_one_cluster_is_one():
    assert "<h1>1 cluster of exploits</h1>" in render([exploit()])
    assert "<h1>2 clusters of exploits</h1>" in render([exploit(), exploit()])


def test_none_found_says_what_that_is_worth():
    assert "no proof that there is none" in render([])
    assert "no proof" not in render([exploit()])


def test_a_table_has_heads_and_is_reached_by_keyboard():
    made = render([exploit()])
    assert made.count("<th ") == made.count('<th scope="col"')
    assert made.count('class="scroll whole" tabindex="0" role="region" aria-label=') == 2
    assert 'data-head="minimal form"' in made


def test_what_a_policy_wrote_stays_text():
    made = render([exploit("<script>alert(1)</script>\ud800")])
    assert "<script" not in made
    assert "&lt;script&gt;" in made
