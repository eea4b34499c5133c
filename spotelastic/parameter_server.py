"""Trains by a parameter server: one rank holds the parameters, and the others push gradients."""

from typing import TYPE_CHECKING

from spotelastic.public_names import on_first_use

if TYPE_CHECKING:
    from spotelastic.training.parameter_server.server import ParameterServer

__all__ = ["ParameterServer"]
__getattr__ = on_first_use(
    "spotelastic.parameter_server",
    {"ParameterServer": "spotelastic.training.parameter_server.server"},
    of_nodes=__all__,
)
