"""Which parameter each operator of an update works on."""

from daydream.collect.derive.by_parameter import cut_by_parameter

ADD, MUL, SQRT, STEP = range(4)


def test_parameters_that_take_the_same_operators():
    names = [STEP, MUL, ADD] * 3
    shapes = ["[]", "[4]", "[4]", "[]", "[4]", "[4]", "[]", "[2,4]", "[2,4]"]

    assert cut_by_parameter(names, shapes, [["[4]", "[4]", "[2,4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_groups_with_settings_of_their_own():
    names = [ADD, MUL, ADD, ADD, MUL, ADD, MUL, ADD]
    shapes = ["[2,4]"] * 6 + ["[4]"] * 2

    assert cut_by_parameter(names, shapes, [["[2,4]", "[2,4]"], ["[4]"]]) == [0, 0, 0, 1, 1, 1, 2, 2]


def test_nothing_is_said_of_operators_that_do_not_fit():
    assert cut_by_parameter([ADD, MUL, SQRT], ["[4]", "[4]", "[2]"], [["[4]", "[2]"]]) == []
    factored = [STEP, MUL, SQRT, STEP, ADD]  # of a matrix, then of a vector
    assert cut_by_parameter(factored, ["[]", "[2,4]", "[2,1]", "[]", "[4]"], [["[2,4]", "[4]"]]) == []
    assert cut_by_parameter([ADD, ADD], ["[4]", "[2]"], [["[4]", "[8]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], [["[4]", "[4]"]]) == []
    assert cut_by_parameter([ADD], ["[4]"], []) == []
