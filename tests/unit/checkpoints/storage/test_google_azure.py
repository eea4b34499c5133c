"""Google Cloud Storage and Azure: what their answers mean, and what does not answer."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import GCSStore, MemoryStore
from spotelastic_checkpoints.errors import StorageRefused, StorageUnavailable
from spotelastic_checkpoints.storage.google_azure import HangingObstoreStorage, open_google_or_azure
from spotelastic_checkpoints.storage.limits import DEFAULT_LIMITS, Limits
from spotelastic_checkpoints.storage.object_store import Storage
from spotelastic_checkpoints.storage.obstore_storage import Wording, client_options
from spotelastic_checkpoints.storage.open import open_storage
from spotelastic_checkpoints.storage.parts import WHOLE
from support.processes.patience import PATIENT, eventually
from support.saving.fixed_answers import answering, silent
from support.saving.gcs import BUCKET, gcs_server, use_gcs

HASTY = Limits(answer=0.2, part=0.2)
CALLS: dict[str, Callable[[Storage], object]] = {
    "get": lambda storage: storage.get("LATEST"),
    "read": lambda storage: storage.read("LATEST", 0, memoryview(bytearray(4))),
    "put": lambda storage: storage.put("shard", memoryview(b"data")),
    "create": lambda storage: storage.create("LATEST", b"first"),
    "swap": lambda storage: storage.swap("LATEST", b"second", json.dumps(['"1"', "1"])),
    "keys": lambda storage: storage.keys(),
    "delete": lambda storage: storage.delete(["shard"]),
}


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None that this machine may have."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONNECTION_STRING", "ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def use_azure(patch: pytest.MonkeyPatch, endpoint: str) -> str:
    fields = f"AccountName=me;AccountKey=c2VjcmV0;BlobEndpoint={endpoint}/me"
    patch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{fields}")
    return "az://box/run"


@pytest.fixture(params=["google", "azure"])
def at(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Storage]:
    """Opens the one or the other at an address."""

    def found(endpoint: str, limits: Limits = DEFAULT_LIMITS) -> Storage:
        if request.param == "google":
            url = use_gcs(monkeypatch, tmp_path, endpoint)
        else:
            url = use_azure(monkeypatch, endpoint)
        return open_google_or_azure(url, limits)

    return found


def test_a_call_without_an_answer_is_given_up(at: Callable[..., Storage]) -> None:
    with silent() as endpoint:
        storage = at(endpoint, HASTY)
        for name, call in CALLS.items():
            with pytest.raises(StorageUnavailable):
                call(storage)
                pytest.fail(f"{name} waited for an answer")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_passes_is_waited_out(status: int, at: Callable[..., Storage]) -> None:
    with answering(status) as endpoint:
        storage = at(endpoint)
        for call in CALLS.values():
            with pytest.raises(StorageUnavailable, match=f"status {status}"):
                call(storage)


def test_no_permission_is_refused_with_the_role_that_is_missing(
    at: Callable[..., Storage],
) -> None:
    with answering(403) as endpoint:
        storage = at(endpoint)
        for call in CALLS.values():
            with pytest.raises(StorageRefused, match="403: give these credentials the role"):
                call(storage)


@pytest.mark.parametrize(
    ("use", "code", "message"),
    [
        ("gs", "NoSuchBucket", f"there is no bucket {BUCKET}: create it first"),
        ("az", "ContainerNotFound", "there is no container box: create it first"),
    ],
)
def test_a_missing_bucket_is_refused_by_name(
    use: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(404, code) as endpoint:
        google = use == "gs"
        url = (
            use_gcs(monkeypatch, tmp_path, endpoint) if google else use_azure(monkeypatch, endpoint)
        )
        storage = open_storage(url)
        for call in CALLS.values():
            with pytest.raises(StorageRefused, match=message):
                call(storage)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("az://box/run", "az://box/run: name the storage account in AZURE_STORAGE_ACCOUNT_NAME"),
        ("gs://", "the bucket is missing, as in gs://bucket/prefix"),
        ("az://", "the container is missing, as in az://container/prefix"),
        ("gs://bucket/a//b", "there is an empty name between two slashes"),
    ],
)
def test_what_cannot_be_opened_is_refused(url: str, message: str) -> None:
    with pytest.raises(StorageRefused, match=message):
        open_storage(url)


def test_a_key_file_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key.json").write_text("no key")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
    with pytest.raises(StorageRefused, match="gs://bucket/run: the credentials cannot be used"):
        open_storage("gs://bucket/run")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/run", "no Google credentials: run `gcloud auth application-default login`"),
        ("abfs://box@me.dfs.core.windows.net/run", "no Azure credentials: set AZURE_STORAGE_"),
    ],
)
def test_a_machine_without_credentials_is_told_how_to_have_some(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(404) as endpoint:  # the metadata service of a machine that has no account
        monkeypatch.setenv("GCE_METADATA_HOST", endpoint.removeprefix("http://"))
        monkeypatch.setenv("AZURE_IDENTITY_ENDPOINT", endpoint)
        with pytest.raises(StorageRefused, match=message):
            open_storage(url).keys()


def test_an_update_is_of_the_generation_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another write of the same content is another write."""
    with gcs_server() as (endpoint, _):
        storage = open_storage(use_gcs(monkeypatch, tmp_path, endpoint))
        assert storage.create("LATEST", b"same")
        first = storage.get("LATEST")
        assert first is not None
        storage.put("LATEST", memoryview(b"same"))
        assert not storage.swap("LATEST", b"other", first.etag)


def test_an_upload_that_is_given_up_neither_ends_nor_keeps_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, go_on = threading.Event(), threading.Event()

    def told(_: int) -> None:
        """In the middle of the upload, it hangs."""
        sent.set()
        assert go_on.wait(PATIENT)

    memory = bytearray(WHOLE + 1)
    with gcs_server() as (endpoint, store):
        url = use_gcs(monkeypatch, tmp_path, endpoint)
        options = client_options(PATIENT)  # a request that is answered too late leaves an upload
        made = GCSStore.from_url(url, client_options=options, retry_config={"max_retries": 0})
        storage = HangingObstoreStorage(url, BUCKET, lambda _: made, Wording(), Limits(part=0.01))

        def putting() -> None:
            while not sent.is_set():  # it may be given up before it has begun
                _fails(storage, memory, told)

        thread = threading.Thread(target=putting)
        thread.start()
        assert sent.wait(PATIENT)
        thread.join(PATIENT)
        assert not thread.is_alive()
        memory.clear()  # fails while anything looks at it
        go_on.set()
        eventually(lambda: not store.uploads)
        assert store.objects == {}


def _fails(storage: Storage, memory: bytearray, told: Callable[[int], None]) -> None:
    with memoryview(memory) as data, pytest.raises(StorageUnavailable):
        storage.put("shard", data, told)


def test_the_same_store_in_memory_keeps_what_is_small_and_what_is_large() -> None:
    made = MemoryStore()
    storage = HangingObstoreStorage("here", "here", lambda _: made, Wording())
    for size in (0, 1, WHOLE + 1):
        told: list[int] = []
        storage.put("shard", memoryview(bytes(size)), told.append)
        assert sum(told) == size
        assert storage.read("shard", max(size - 1, 0), memoryview(bytearray(9))) == min(size, 1)
