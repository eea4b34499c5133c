"""`adapt` refuses modules that keep what no state_dict() has."""

import re

import pytest
from support.scripts.scripts_in_epochs import epochs

from spotelastic.client.adapt.adapt import adapted
from spotelastic.client.adapt.source import NotUnderstood

NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {}
    def forward(self, x):
        {}
        return x * self.n
"""
OWN = "class Own:\n    n = 0\n    def tick(self):\n        self.n += 1\n"


@pytest.mark.parametrize(
    ("begun", "changed", "why"),
    [
        ("self.n = torch.zeros(1)", "self.n += 1", "Net.forward() changes self.n"),
        ("self.n = torch.zeros(1)", "self.n.add_(1)", "Net.forward() changes self.n"),
        ("self.n = 0", "setattr(self, 'n', self.n + 1)", "Net.forward() changes self"),
        (
            "self.register_buffer('n', torch.zeros(1), persistent=False)",
            "self.n += 1",
            "Net.forward() changes self.n",
        ),
        (
            "self.register_buffer('n', torch.zeros(1), False)",
            "self.n += 1",
            "Net.forward() changes self.n",
        ),
        ("self.own = Own()", "self.own.tick()", "Own.tick() changes self.n"),
    ],
)
def test_what_a_module_keeps_besides_buffers_is_refused(begun: str, changed: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=re.escape(why)):
        adapted(epochs(before=NET.format(begun, changed) + OWN), "train.py")


@pytest.mark.parametrize(
    ("begun", "changed"),
    [
        ("self.register_buffer('n', torch.zeros(1))", "self.n += 1"),
        ("self.register_parameter('n', nn.Parameter(x))", "nn.init.zeros_(self.n)"),
        ("self.n = nn.Parameter(torch.zeros(1))", "self.n.data.clamp_(0, 1)"),
    ],
)
def test_what_a_module_saves_may_change(begun: str, changed: str) -> None:
    text = epochs(before=NET.format(begun, changed))
    assert "se.Checkpointer(state)" in adapted(text, "train.py").after
