"""In which words a checkpoint does not fit, and under which names it may."""

from spotelastic.training.fitting import Kind, misfit, renamed

WEIGHT, BIAS, VALUE = Kind("float32", (8, 4)), Kind("float32", (8,)), Kind()


def test_the_same_names_and_shapes_fit() -> None:
    assert not misfit({"w": WEIGHT, "lr": VALUE}, {"lr": VALUE, "w": WEIGHT})


def test_the_first_missing_and_unexpected_names_and_shapes_are_told() -> None:
    here = {"a": WEIGHT, "b": BIAS, "c": BIAS, "d": VALUE}
    there = {"b": Kind("float16", (8,)), "c": BIAS, "x": BIAS, "y": VALUE, "d": WEIGHT}
    assert misfit(here, there) == (
        "a is missing from it; it also holds x (and 1 more); "
        "b is float16 [8] there and float32 [8] here (and 1 more)"
    )


def test_a_value_is_not_a_tensor() -> None:
    assert misfit({"t": VALUE}, {"t": BIAS}) == "t is float32 [8] there and a value here"


def test_numbers_and_wrappers_are_names_of_another_program() -> None:
    def found(*path: str | int) -> tuple[str | int, ...]:
        return renamed(path, {"optimizer": ["b", "a.w"]}, {"model"})

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
