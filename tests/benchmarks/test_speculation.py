"""The count of drafted tokens, against groups whose passes can be counted by hand."""

import pytest
from speculation import count


def test_nothing_repeats_and_every_token_takes_a_pass():
    c = count([[1, 2, 3]], [[4, 5, 6, 7]], most=4, shared=False)
    assert (c.tokens, c.passes, c.drafted, c.rounds, c.longest) == (4, 4, 0, 4, 4)


@pytest.mark.parametrize(("most", "passes"), [(1, 2), (2, 1), (8, 1)])
def test_a_response_that_repeats_its_prompt(most, passes):
    """1 2 are the last two tokens of the prompt and stand at its start, where 3 4 5 followed."""
    c = count([[1, 2, 3, 4, 5, 9, 1, 2]], [[3, 4, 8]], most, shared=False)
    assert c.passes == passes  # 3 is kept and 4 drawn, 5 drafted and 8 drawn; or 3 4 kept and 8 drawn


def test_a_wrong_draft_costs_rows_and_no_pass():
    c = count([[1, 2, 3, 9, 1, 2]], [[4]], most=1, shared=False)
    assert (c.passes, c.drafted) == (1, 1)


def test_a_sibling_ahead_is_copied_only_where_the_group_is_shared():
    prompts, responses = [[1, 2], [1, 2]], [[3, 4, 5, 6], [7, 3, 4, 5, 6]]
    alone, group = (count(prompts, responses, most=4, shared=shared) for shared in (False, True))
    assert alone.passes == 9
    # 7, 3 and 4 are drawn; after 3 4 the sibling has written 5 and 6.
    assert group.passes == 4 + 4
    assert group.rounds == 4
