"""Trains by a parameter server: one rank holds the parameters, and the others push gradients."""

from spotelastic.training.parameter_server.server import ParameterServer

__all__ = ["ParameterServer"]
