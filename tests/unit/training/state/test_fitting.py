"""In which words a checkpoint does not fit, and under which names it may."""

from spotelastic.training.state.compatibility import Kind, misfit_of, misfit_of_all, renamed

WEIGHT, BIAS, VALUE = Kind("float32", (8, 4)), Kind("float32", (8,)), Kind()


def test_the_same_names_and_shapes_fit() -> None:
    assert not str(misfit_of({"w": WEIGHT, "lr": VALUE}, {"lr": VALUE, "w": WEIGHT}))


def test_the_first_missing_and_unexpected_names_and_shapes_are_told() -> None:
    here = {"a": WEIGHT, "b": BIAS, "c": BIAS, "d": VALUE}
    there = {"b": Kind("float16", (8,)), "c": BIAS, "x": BIAS, "y": VALUE, "d": WEIGHT}
    assert str(misfit_of(here, there)) == (
        "a is missing from it; it also holds x (and 1 more); "
        "b is float16 [8] there and float32 [8] here (and 1 more)"
    )


def test_a_value_is_not_a_tensor() -> None:
    assert str(misfit_of({"t": VALUE}, {"t": BIAS})) == "t is float32 [8] there and a value here"


def test_numbers_and_wrappers_are_names_of_another_program() -> None:
    def found(*path: str | int) -> tuple[str | int, ...]:
        return renamed(path, {"optimizer": ["b", "a.w"]}, {"model"}, ())

    assert found("optimizer", "state", "1", "exp_avg") == ("optimizer", "state", "a.w", "exp_avg")
    assert found("model", "module._orig_mod.a.w") == ("model", "a.w")
    for other in (
        ("optimizer", "state", "2", "exp_avg"),
        ("optimizer", "param_groups", 1, "lr"),
        ("teacher", "module.w"),
        ("model", "a.module.w"),
        ("epoch",),
    ):
        assert found(*other) == other


def test_names_may_be_those_of_one_rank_but_not_of_none() -> None:
    there = {"l0": WEIGHT, "l1": WEIGHT, "lr": VALUE}
    first, second = {"l0": WEIGHT, "lr": VALUE}, {"l1": WEIGHT, "lr": VALUE}
    stages = [misfit_of(first, there), misfit_of(second, there)]
    assert [misfit.unexpected for misfit in stages] == [{"l1"}, {"l0"}]
    assert not str(misfit_of_all(stages))
    assert str(misfit_of_all([misfit_of(first, there)] * 2)) == "it also holds l1"
    grown = misfit_of({**second, "l2": WEIGHT}, there)
    assert str(misfit_of_all([stages[0], grown])) == "l2 is missing from it"
    other = misfit_of({"l1": BIAS, "lr": VALUE}, there)
    assert "l1 is float32" in str(misfit_of_all([stages[0], other]))
