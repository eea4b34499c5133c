"""The command that runs an emulated cluster: it starts none where its arguments are wrong."""

import pytest
from support.emulated_kubernetes import __main__ as command
from support.emulated_kubernetes import cluster


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["--help"], 0, "Run an emulated Kubernetes cluster on this machine"),
        (["--nodes", "3"], 2, "unrecognized arguments: --nodes 3"),
        (["job.yaml"], 2, "unrecognized arguments: job.yaml"),
    ],
)
def test_arguments_are_read_before_a_cluster_starts(
    args: list[str],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cluster, "running", lambda: pytest.fail("a cluster was started"))
    with pytest.raises(SystemExit) as ended:
        command.main(args)
    its = capsys.readouterr()
    assert ended.value.code == code
    assert told in its.out + its.err
