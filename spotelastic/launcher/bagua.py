"""Sets the variables that scripts of the Bagua library expect, from Bagua's own launcher flags.

They are those of BaguaSys/bagua distributed/run.py. Bagua's service runs beside rank 0, which may
be on another node in each round: its address is that of the round store, whatever --master-addr
says.
"""

import argparse
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from spotelastic.errors import UsageError
from spotelastic.launcher.flags import BAGUA, given

DEFAULTS = {
    "bagua_service_port": 29501,
    "default_bucket_size": 10 << 20,
    "autotune_level": 0,
    "autotune_max_samples": 60,
    "autotune_sampling_confidence_time": 5.0,
    "autotune_warmup_time": 30.0,
}
"""Bagua's own default values, by flag."""
VARIABLES = {
    "bagua_service_port": "BAGUA_SERVICE_PORT",
    "default_bucket_size": "BAGUA_DEFAULT_BUCKET_SIZE",
    "autotune_level": "BAGUA_AUTOTUNE",
    "autotune_max_samples": "BAGUA_AUTOTUNE_MAX_SAMPLES",
    "autotune_sampling_confidence_time": "BAGUA_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S",
    "autotune_warmup_time": "BAGUA_AUTOTUNE_WARMUP_TIME_S",
}
"""The environment variable of each flag."""


def environment(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables; none if no flag of Bagua's is given and Bagua is not installed."""
    if not given(options, BAGUA) and importlib.util.find_spec("bagua") is None:
        return {}
    values = {
        name: default if getattr(options, name) is None else getattr(options, name)
        for name, default in DEFAULTS.items()
    }
    env = {variable: str(values[name]) for name, variable in VARIABLES.items()}
    env["BAGUA_IS_OUTPUT_AUTOTUNE_LOG"] = str(int(options.is_output_autotune_log))
    if int(values["autotune_level"]) > 0:
        env["AUTO_TUNE_SERVER_ADDR"] = f"${{master_addr}}:{values['bagua_service_port']}"
    if options.enable_bagua_net or options.bagua_net_switch_on:
        paths = (str(_net()), environ.get("LD_LIBRARY_PATH", ""))
        env["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    return env


def _net() -> Path:
    """Return the folder of the NCCL plug-in that comes with Bagua."""
    spec = importlib.util.find_spec("bagua_core")
    if spec is None or spec.origin is None:
        raise UsageError("--enable-bagua-net: the package bagua_core is not installed here")
    return Path(spec.origin).parent / "data" / "bagua-net"
