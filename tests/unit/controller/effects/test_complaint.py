"""How often it is said that something still fails."""

from spotelastic.controller.effects.complaint import SAID_AGAIN_AFTER, Complaint


def test_what_goes_on_is_said_once_a_minute_and_what_is_new_at_once() -> None:
    now, said = 0.0, list[str]()
    complain = Complaint(said.append, lambda: now)
    for line in ("busy", "busy", "denied", "denied"):
        complain(line)
    assert said == ["busy", "denied"]
    now += SAID_AGAIN_AFTER
    complain("denied")
    complain("denied")
    assert said == ["busy", "denied", "denied"]
