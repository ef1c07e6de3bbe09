import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stagecut import Boundary, InvalidInputError, at_marks, repeated_blocks

words = st.text("abc", max_size=14)


@given(st.sets(st.integers(1, 11)))
def test_layers_begin_at_the_marks_and_take_every_operator(marks):
    layers = at_marks(sorted(marks), 12)
    assert [first for first, _ in layers] == [0, *sorted(marks)]
    assert [k for first, last in layers for k in range(first, last + 1)] == list(range(12))


@pytest.mark.parametrize(
    ("marks", "n"), [((0, 2), 4), ((2, 2), 4), ((3, 1), 4), ((4,), 4), ((-1,), 4), ((), 0)], ids=str
)
def test_rejects_marks_that_leave_a_layer_empty(marks, n):
    with pytest.raises(InvalidInputError, match=r"every layer has an operator; got marks="):
        at_marks(marks, n)


def repetitions(word, begin=0):
    """Operators in all copies, minus the period, minus the start, of every repetition."""
    for start, period in itertools.product(range(len(word)), range(1, len(word) // 2 + 1)):
        block = word[start : start + period]
        count = 1
        while word[start + count * period :].startswith(block):
            count += 1
        if count > 1:
            yield count * period, -period, -begin - start


def cut_by_brute_force(word, n_groups):
    """Where layers begin or end; None if too few blocks repeat."""
    cuts, rest = {0, len(word)}, [(0, len(word))]
    for _ in range(n_groups):
        found = [(best, part) for part in rest for best in repetitions(word[slice(*part)], part[0])]
        if not found:
            return None
        (covered, period, start), (begin, end) = max(found)
        copies = range(-start, covered - start + 1, -period)
        rest = [*(set(rest) - {(begin, end)}), (begin, copies[0]), (copies[-1], end)]
        cuts.update(copies)
    return cuts


@given(words, st.integers(1, 3))
def test_finds_the_repetitions_with_most_operators_then_the_shortest_block_then_the_first(word, n):
    cuts = cut_by_brute_force(word, n)
    if cuts is None:
        with pytest.raises(InvalidInputError, match=r"directly repeated; got n_groups="):
            repeated_blocks(word, n_groups=n)
    else:
        assert repeated_blocks(word, n_groups=n) == at_marks(
            sorted(cuts - {0, len(word)}), len(word)
        )


def test_a_transformer_has_its_blocks_and_a_head_and_a_tail():
    block = [("matmul", k) if k % 10 == 0 else ("add", k % 4) for k in range(150)]
    layers = repeated_blocks([*"head", *block * 48, *"tail!"])
    assert layers[0] == (0, 3)
    assert layers[1:-1] == tuple((4 + 150 * k, 153 + 150 * k) for k in range(48))
    assert layers[-1] == (4 + 150 * 48, 8 + 150 * 48)


def test_a_network_of_several_blocks_has_as_many_groups():
    layers = repeated_blocks("_" + "aab" * 5 + "xy" * 3 + "." + "zzu" * 2, n_groups=3)
    assert [last + 1 - first for first, last in layers] == [1, *[3] * 5, *[2] * 3, 1, 3, 3]


def test_blocks_within_blocks_are_left_together():
    assert repeated_blocks("aab" * 3) == ((0, 2), (3, 5), (6, 8))


def test_copies_begin_where_the_fewest_bytes_cross():
    # What c makes is large, so no copy begins after it if that can be helped: a|ca|ca|ca.
    values = [Boundary(k, 1 if word == "a" else 9, (k + 1,)) for k, word in enumerate("acacaca")]
    assert repeated_blocks("acacaca") == ((0, 1), (2, 3), (4, 5), (6, 6))
    assert repeated_blocks("acacaca", values[:-1]) == ((0, 0), (1, 2), (3, 4), (5, 6))


@given(words, st.integers(1, 9))
def test_signatures_are_only_compared(word, factor):
    def layers(signatures):
        try:
            return repeated_blocks(signatures)
        except InvalidInputError:
            return None

    assert layers(word) == layers([(each, factor) for each in word])


def test_rejects_values_between_operators_that_are_not_there():
    with pytest.raises(InvalidInputError, match=r"read it after one made it; got values\[0\]="):
        repeated_blocks("aa", [Boundary(0, 1, (2,))])
