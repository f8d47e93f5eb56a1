"""Whose gradients and operators of an update are, by the order in which they run."""

from __future__ import annotations

from daydream.collect.derive.by_parameter import cut_by_parameter, owners_behind_compiled, queue_order

WIDE, BIAS, HEAD, TEN = "[64,64]", "[64]", "[10,64]", "[10]"
SHAPES = [*[WIDE, BIAS] * 5, HEAD, TEN]
OWNERS = [layer for number in range(0, 11, 2) for layer in [str(number)] * 2]
# As torch 2.13 recorded it behind the compiled backward pass of six linear layers, weight and bias each.
RECORDED = [WIDE, WIDE, WIDE, TEN, HEAD, BIAS, WIDE, BIAS, BIAS, WIDE, BIAS, BIAS]


def test_the_queue_of_equal_entries_is_emptied_in_one_order():
    # 0 leaves: 3 was last, and 2 moves up from the right: 2 1 3. 2 leaves: the right one is gone: 1 3.
    assert queue_order(4) == [0, 2, 1, 3]
    assert queue_order(12) == [0, 2, 6, 11, 10, 9, 8, 5, 7, 4, 1, 3]
    assert queue_order(0) == []
    for count in range(40):
        assert sorted(queue_order(count)) == list(range(count))


def test_recorded_gradients_have_the_owners_that_their_order_tells():
    first, second = owners_behind_compiled([RECORDED, RECORDED], SHAPES, OWNERS)
    assert first == second
    assert first == ["0", "2", "6", "10", "10", "8", "8", "4", "6", "4", "0", "2"]


def test_several_graphs_of_a_pass_have_the_parameters_from_the_last_on():
    # The graph behind the break runs backward first: the head's two, then those of the layer before.
    shapes = [WIDE, BIAS, HEAD, TEN]
    found = owners_behind_compiled([[TEN, HEAD], [WIDE, BIAS]], shapes, ["a", "a", "b", "b"])
    assert found == [["b", "b"], ["a", "a"]]
    # Two layers of one graph with weights of one shape: whose is first is not known.
    shapes = [WIDE, WIDE, WIDE]
    assert owners_behind_compiled([[WIDE, WIDE], [WIDE]], shapes, ["a", "b", "c"]) is None


def test_an_order_that_does_not_fit_names_nobody():
    assert owners_behind_compiled([[BIAS, *RECORDED[1:]]], SHAPES, OWNERS) is None
    assert owners_behind_compiled([RECORDED[:3]], SHAPES, OWNERS) is None
    assert owners_behind_compiled([[None]], [BIAS], ["a"]) is None
    assert owners_behind_compiled([[HEAD, TEN]], [WIDE, BIAS, HEAD, TEN], list("aabb")) is None  # half a pass


# Which parameter each operator of an update works on


ADD, MUL, SQRT, STEP = range(4)


def test_parameters_that_take_the_same_operators():
    names = [STEP, MUL, ADD] * 3
    shapes = ["[]", "[4]", "[4]", "[]", "[4]", "[4]", "[]", "[2,4]", "[2,4]"]

    assert cut_by_parameter(names, shapes, [["[4]", "[4]", "[2,4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_groups_with_settings_of_their_own():
    names = [ADD, MUL, ADD, ADD, MUL, ADD, MUL, ADD]
    shapes = ["[2,4]"] * 6 + ["[4]"] * 2

    assert cut_by_parameter(names, shapes, [["[2,4]", "[2,4]"], ["[4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2]


def test_operators_that_depend_on_the_parameter():
    names = [STEP, MUL, SQRT, STEP, ADD, STEP, MUL, SQRT]
    shapes = ["[]", "[2,4]", "[2,1]", "[]", "[4]", "[]", "[8,4]", "[8,1]"]

    assert cut_by_parameter(names, shapes, [["[2,4]", "[4]", "[8,4]"]]) == [0, 0, 0, 1, 1, 2, 2, 2]


def test_nothing_is_said_of_operators_that_do_not_fit():
    assert cut_by_parameter([ADD, MUL, SQRT], ["[4]", "[4]", "[2]"], [["[4]", "[2]"]]) == []
    assert cut_by_parameter([ADD, ADD], ["[4]", "[2]"], [["[4]", "[8]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], [["[4]", "[4]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], []) == []
