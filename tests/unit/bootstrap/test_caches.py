"""Where the caches of a script's libraries are."""

from spotelastic.bootstrap.job_environment import FOLDERS, SCRATCH, cache_folders


def test_caches_are_on_the_scratch_disk() -> None:
    found = cache_folders({SCRATCH: "/mnt/scratch"})
    assert found["HF_HOME"] == "/mnt/scratch/cache/huggingface"
    assert found.keys() == FOLDERS.keys()
    assert len(set(found.values())) == len(FOLDERS)


def test_what_an_image_says_stays() -> None:
    found = cache_folders({SCRATCH: "/mnt/scratch", "HF_HOME": "/models"})
    assert found.keys() == FOLDERS.keys() - {"HF_HOME"}


def test_nodes_of_the_local_cloud_share_the_caches_of_their_machine() -> None:
    assert cache_folders({SCRATCH: "/home/scratch", "SPOTELASTIC_VOLUMES": "/v"}) == {}
    assert cache_folders({}) == {}
