from equipoise.policy.architectures import ARCHITECTURES
from tests.policy import tiny_models


def test_every_architecture_has_a_tiny_model_that_the_tests_of_all_paths_run():
    assert {f"{name}ForCausalLM" for name, _ in tiny_models.LLAMA_LIKE.values()} == set(ARCHITECTURES)
