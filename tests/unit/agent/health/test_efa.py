"""EFA devices, as the kernel shows them, and NCCL's plugin, as the loader finds it."""

import os
from pathlib import Path

from spotelastic.agent.health import efa


def device(folder: Path, name: str, driver: str) -> None:
    (folder / "drivers" / driver).mkdir(parents=True, exist_ok=True)
    (folder / "infiniband" / name / "device").mkdir(parents=True)
    (folder / "infiniband" / name / "device" / "driver").symlink_to(folder / "drivers" / driver)


def ldconfig(folder: Path, *libraries: str) -> dict[str, str]:
    folder.mkdir()
    program = folder / "ldconfig"
    lines = "".join(f"\techo '\t{name} (libc6,x86-64) => /opt/{name}'\n" for name in libraries)
    program.write_text(f"#!/bin/sh\necho '2 libs found in cache'\n{lines}")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "LD_LIBRARY_PATH": ""}


def test_only_devices_of_efas_driver_count(tmp_path: Path) -> None:
    device(tmp_path, "rdmap0s6", "efa")
    device(tmp_path, "rdmap0s7", "efa")
    device(tmp_path, "mlx5_0", "mlx5_core")
    (tmp_path / "infiniband" / "odd").mkdir()
    assert efa.devices(tmp_path / "infiniband") == 2
    assert efa.devices(tmp_path / "none") == 0


def test_the_plugin_is_found_in_the_loaders_cache(tmp_path: Path) -> None:
    assert efa.has_plugin(ldconfig(tmp_path / "a", "libnccl.so.2", "libnccl-net.so"))
    assert efa.has_plugin(ldconfig(tmp_path / "b", "libnccl-net-ofi.so.0"))
    assert not efa.has_plugin(ldconfig(tmp_path / "c", "libnccl.so.2", "libnccl-networks.so"))


def test_or_by_the_workers_own_search_path(tmp_path: Path) -> None:
    environ = ldconfig(tmp_path / "bin")
    (tmp_path / "libnccl-net.so").touch()
    assert not efa.has_plugin(environ)
    assert efa.has_plugin({**environ, "LD_LIBRARY_PATH": f"/none:{tmp_path}"})
