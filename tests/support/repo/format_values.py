"""One value of each kind that is stored or sent: what the golden files in tests/contract tell of.

A value here never changes. A field that a later version adds is told by a value of its own.
"""

from dataclasses import replace
from typing import Any

from spotelastic_checkpoints import messages
from spotelastic_checkpoints.files.kept import FilePiece, Index, KeptFile
from spotelastic_checkpoints.format.manifest import Manifest, Shard
from spotelastic_checkpoints.memory.arena import SlotHeader
from spotelastic_checkpoints.peers import messages as peer_messages
from spotelastic_checkpoints.protocol_version import FORMAT, ProtocolVersion
from spotelastic_checkpoints.types import (
    Branch,
    Commit,
    DaemonStatus,
    EpochClaim,
    Holder,
    Item,
    MemberRanks,
    RestoreSet,
    Resume,
    RoundInfo,
    Schedule,
    SlotGrant,
    Snapshot,
    StepPoint,
    TimedValue,
    UploadStatus,
    Ward,
    WorkerStep,
)

from spotelastic.model.in_place import Rehearsal, Standing
from spotelastic.model.interruption_kind import InterruptionKind
from spotelastic.model.interval import Interval
from spotelastic.model.job import (
    Capacity,
    Environment,
    Failure,
    JobSpec,
    Regions,
    Reservation,
    Settings,
)
from spotelastic.model.node import Fingerprint, Node
from spotelastic.model.progress import (
    GpuUse,
    Interruption,
    Progress,
    SlowNode,
)
from spotelastic.model.replication import Replication
from spotelastic.model.round import (
    Member,
    Partner,
    Past,
    Round,
    Streak,
    Suspect,
)
from spotelastic.model.validity import Validity

PROTOCOL = ProtocolVersion(1, 0)
"""Of these values: the product's own may be a later one."""

COMMIT = Commit(3, 1200)
BRANCH = Branch("0123456789abcdef", 1250, COMMIT)
SCHEDULE = Schedule(10, 50)
HOLDER = Holder("i-0a", "10.0.0.10:4100", (0, 1), whole=True)
FROM_MEMORY = Resume("memory", 1250, "0123456789abcdef", "5e" * 16, (HOLDER,))
FROM_STORE = Resume("store", 1200, epoch=3)
SNAPSHOT = Snapshot("0123456789abcdef", 1250, "5e" * 16, (0, 1), 4, whole=True, nbytes=4096)
MEMBERS = (
    Member("i-0a", "aa00", 0, "10.0.0.10", "us-east-1a", 2),
    Member("i-0b", "bb00", 1, "10.0.0.11", "us-east-1b", 2),
)
ROUND = Round(
    number=7,
    incarnation="fedcba9876543210",
    phase="started",
    members=MEMBERS,
    cause="drain",
    reason="i-0c leaves: 2 nodes",
    nodes=("i-0c",),
    proposed_at=1700000000.5,
    started_at=1700000001.25,
    parent="0123456789abcdef",
    lineage=(BRANCH,),
    known=COMMIT,
    resume=FROM_MEMORY,
    store="10.0.0.10:29500",
    epoch=4,
    schedule=SCHEDULE,
    past=Past(3600.5, 2, 1),
    code="c0de" * 16,
    charged=(1699999000.0,),
    streak=Streak(2, 1, "exit 1: ValueError"),
    pause=1.0,
    missed=("cc00",),
    late=1,
    suspects=(Suspect("i-0d", 412),),
    excused=(1699999001.0,),
    plain=5,
)
ROUND_IN_PLACE = Round(
    number=8,
    incarnation="00112233445566aa",
    phase="started",
    members=MEMBERS,
    cause="loss",
    reason="i-0c was lost: 2 nodes",
    nodes=("i-0c",),
    parent="fedcba9876543210",
    resume=Resume("memory", 1283, "fedcba9876543210"),
    in_place="keep",
    rests=True,
    parent_from_memory=True,
    fruitless=1,
    run_id="8899aabbccddeeff",
)
ROUND_WITH_PARTNERS = Round(
    number=9,
    incarnation="8899aabbccddeeff",
    phase="started",
    members=MEMBERS,
    cause="start",
    reason="2 nodes",
    partners=(
        Partner("i-0b", "i-0a", "10.0.0.10:4100"),
        Partner("i-0a", "i-0b", "10.0.0.11:4100"),
    ),
)
STANDINGS = (Standing(1282, "pending"), Standing(1283))
FINGERPRINT = Fingerprint(
    "3.11.9", "2.8.0", "12.8", "c0de" * 16, 2, "spotelastic", protocol=PROTOCOL
)
SLOW = SlowNode("i-0b", "bb00", 1700000300.0, 1.8, 0.55)
MEASURED = Progress("i-0b", 7, 1280, 1700000300.0, measured=1280, own_time=0.2, waiting_time=0.05)
SLOW_SETTINGS = Settings(2, 8, slow_after=60.0, replace_slow=True, protocol=PROTOCOL)
REPLICATES = Settings(2, 8, replicate=Replication(50e6), protocol=PROTOCOL)
KEPT = Index(
    1,
    12,
    "i-0a",
    7,
    {
        "out/best.pt": KeptFile(
            (16 << 20) + 3,
            1700000000123456789,
            (FilePiece("0011223344556677", 16 << 20, 11), FilePiece("8899aabbccddeeff", 3, 12)),
            epoch=12,
            revision=7,
        ),
        "out/last.pt": KeptFile(0, 1700000000123456789, link="best.pt", epoch=11, revision=2),
        "out/log~10": KeptFile(0, 1700000000123456789, epoch=10, revision=1, aside=True),
    },
    {10: 1, 11: 4},
)
REHEARSES = Settings(2, 8, rehearse="strict", protocol=PROTOCOL)
EXACT = Settings(2, 8, exact=True, protocol=PROTOCOL)
REHEARSAL = Rehearsal(
    2,
    3,
    "different",
    ("step 2 was made twice on 3 ranks, and differs:", "lr is 0.1, was 0.2.", "So it is told"),
)
RESTS = Progress("i-0b", 7, 1280, 1700000300.0, rests=True)
NODE = Node("i-0a", "aa00", "10.0.0.10", "us-east-1a", FINGERPRINT, "10.0.0.10:4100", True, 1)
SETTINGS = Settings(
    min_nodes=2,
    max_nodes=8,
    workers=2,
    max_restarts=5,
    gang=True,
    rank_policy="pinned",
    lease=2.0,
    quiet=0.5,
    seen_within=0.3,
    ready_within=30.0,
    stall_timeout=600.0,
    snapshot_every=Interval(10),
    checkpoint_every=Interval(seconds=600.0),
    keep_last=4,
    keep_every=1000,
    exit_barrier=120.0,
    code="c0de" * 16,
    protocol=PROTOCOL,
)
FAILURE = Failure(
    id="fa11",
    node="i-0b",
    round="0123456789abcdef",
    rank=2,
    local_rank=0,
    at=1700000100.0,
    exit_code=-9,
    message="out of memory",
    traceback="Traceback (most recent call last): …",
    log="/var/log/spotelastic/rank-2.log",
    stalled=True,
)
BROKEN = Failure(
    id="fa12",
    node="i-0b",
    round="fedcba9876543210",
    rank=2,
    local_rank=0,
    at=1700000100.0,
    exit_code=1,
    message="RuntimeError: Connection closed by peer",
    rests=True,
    broken=True,
)
ITEM = Item(
    "model.weight",
    ("model", "weight"),
    "float32",
    (4, 8),
    (2, 0),
    (2, 8),
    -1,
    64,
    512,
    "00c0ffee00c0ffee",
    "00c0ffee00c0ffee0badf00d0badf00d",
)
VALUE = Item("rng", ("rng", 0), "", (), (), (), 1, 1024, 12, "0123456789abcdef")
MANIFEST = Manifest(
    FORMAT,
    3,
    1200,
    "0123456789abcdef",
    "5e" * 16,
    1,
    2,
    4,
    (Shard("__1_0.distcp", 1036, (ITEM, VALUE)),),
)
ROUND_INFO = RoundInfo(
    incarnation="fedcba9876543210",
    number=7,
    world_size=4,
    slot=1,
    members=(MemberRanks(0, "i-0a", (0, 1)), MemberRanks(1, "i-0b", (2, 3))),
    epoch=4,
    lineage=(BRANCH,),
    schedule=SCHEDULE,
    resume=FROM_MEMORY,
    cause="drain",
)
ROUND_WITH_WARD = RoundInfo(
    incarnation="8899aabbccddeeff",
    number=9,
    world_size=4,
    slot=0,
    members=(MemberRanks(0, "i-0a", (0, 1)), MemberRanks(1, "i-0b", (2, 3))),
    ward=Ward("i-0b", "10.0.0.11:4100", 50e6),
)
WORKER_STEP = WorkerStep(2, 0, 1260, 0.25, 1700000002.0, 1700000005.0, True, True, 0.01)
LOGS = Progress(
    "i-0b",
    7,
    1280,
    1700000300.0,
    logged={"lr": TimedValue(1700000299.5, 0.1), "norm": TimedValue(1700000299.5, None)},
    gpu=GpuUse(8, 0.875, 3 << 30, 640 << 30),
)
PREPARES = Node("i-0e", "ee00", "10.0.0.14", "us-east-1a", FINGERPRINT, prepares=True)
TYPED = Node("i-0b", "bb00", "10.0.0.11", "us-east-1b", FINGERPRINT, type="g5.xlarge")
RESTORE_SET = RestoreSet(3, 1250, 4, ("/dev/shm/a/slot-0-1",), "/dev/shm/a/copies", (ITEM, VALUE))
SHELF = peer_messages.Shelf(2, 1 << 60, 4, 3, (ITEM,))
SLOT_HEADER = SlotHeader(
    "run",
    "0123456789abcdef",
    1250,
    "5e" * 16,
    2,
    4,
    (2, 3),
    True,
    4,
    3,
    2,
    1036,
    2048,
    300,
    1,
    True,
)
SHARDED_HEADER = SlotHeader(
    "run", "0123456789abcdef", 1250, "5e" * 16, 2, 8, (2, 3), False, 4, 3, 2, 1036, 2048, 300, 1,
    False, alone=1, alone_bytes=512, covers=(6, 7),
)  # fmt: skip
OFFER = peer_messages.Offer((peer_messages.OfferedSlot(1 << 60, SHARDED_HEADER, (ITEM,)),))
INTERRUPTION = Interruption(
    kind=InterruptionKind.SPOT_INTERRUPTION,
    node="i-0c",
    at=1700000000.0,
    seen_after_s=0.5,
    saved_step=1250,
    committed=False,
    pause_s=3.25,
    steps_lost=0,
    told_by="imds",
    seen_after_by={"imds": 0.5, "sqs": 2.0},
    first_step_at=1700000004.0,
    usd=0.01,
    round=7,
)
SPEC = JobSpec(
    cluster="demo",
    run="demo",
    script="train.py",
    args=("--epochs", "3"),
    code="ab" * 32,
    settings=SETTINGS,
    storage="s3://bucket/demo/checkpoints",
    etcd=("10.0.0.4:2379", "10.0.1.4:2379", "10.0.2.4:2379"),
    etcd_members=("a", "b", "c"),
    etcd_version="3.5.21",
    container="pytorch/pytorch:latest",
    log_group="/spotelastic/demo",
    queue="spotelastic-demo",
    worker_group="spotelastic-demo-workers",
    instance_types=("g5.xlarge", "g6.xlarge"),
    created_at=1700000000.0,
    born_at=1690000000.0,
    capacity=Capacity("fallback", 1, 300.0, "spread", 1.5, 100.0, 1800000000.0, 3600.0, True),
    linger=None,
    vpc="vpc-1",
    subnets=("subnet-1", "subnet-2"),
    nat_gateways=1,
    service_role="arn:aws:iam::123456789012:role/demo",
    environment=Environment("uv", "uv.lock", "cd" * 32),
    setup="make data",
    env={"OMP_NUM_THREADS": "1"},
    secrets={"WANDB_API_KEY": 2},
    validity=Validity(1800000000.0, 1900000000.0),
    read=("data/train",),
    write=("data/out",),
    folder="/home/me/demo",
    protocol=PROTOCOL,
)
RESERVED = Reservation("cr-1", "g5.xlarge", "us-east-1a", 2, "capacity-block", "210987654321", True)
WATCHED = replace(
    SPEC,
    metrics_port=9464,
    notify={"1-slack": 2},
    digest="06:30",
    capacity=replace(SPEC.capacity, reservations=(RESERVED,)),
)
MOVING = replace(SPEC, regions=Regions(("us-east-1", "us-west-2"), 600.0, True, 4))
REQUESTS: tuple[messages.Request, ...] = (
    messages.Begin(ROUND_INFO),
    messages.ClaimEpoch("demo", 10.0, True),
    messages.GetStatus(),
    messages.SetTarget("fedcba9876543210", "p0", 1260, SCHEDULE),
    messages.End(),
    messages.Flush(5.0),
    messages.FlushFiles(30.0),
    messages.SetDeadline(1700000120.0),
    messages.Subscribe(),
    messages.Attach("fedcba9876543210", 2, 0),
    messages.PutBack(1),
    messages.OpenRestoreSet(FROM_STORE),
    messages.Fetch(3, ((0, 64), (128, 256)), ((256, 512),), 64),
    messages.FindCommit(1200, COMMIT),
    messages.Restored(3),
    messages.Prepare(4096),
    messages.AwaitSlots(0),
    messages.Reserve(urgent=True),
    messages.Sealing(1260, "/dev/shm/a/slot-0-1", True, True),
    messages.Await(1260),
    messages.Urge(),
    messages.Complain("nothing is saved"),
    messages.Rehearse(2, 3, "equal", "rehearsed at step 2 on 3 ranks: bit-identical"),
    messages.Leave(1300, True),
)
EVENTS: tuple[messages.DaemonEvent, ...] = (
    messages.Attached(2),
    messages.Sealed(1260, (2, 3), True),
    messages.Points((StepPoint(1260, 2.5, 1700000010.0), StepPoint(1261, None, 1700000011.0))),
    messages.Committed(3, 1200, 1700000012.0),
    messages.WorkerLeft(2, 1300, True),
    messages.SaveFailed("the store does not answer"),
    messages.Rehearsed(2, 3, "equal", "rehearsed at step 2 on 3 ranks: bit-identical"),
    messages.FilesTold("out/best.pt is on this node alone: --output out"),
    messages.Superseded(3),
    messages.Closed(),
)
ANSWERS: tuple[Any, ...] = (
    EpochClaim(4, COMMIT),
    DaemonStatus(
        "10.0.0.10:4100",
        (SNAPSHOT,),
        COMMIT,
        (WORKER_STEP,),
        UploadStatus(3, 1250, 512, 1036, 9.5),
        "slow",
        True,
        8192,
        4.5,
        True,
    ),
    RESTORE_SET,
    messages.Fetched(((0, 64, 4096),)),
    SlotGrant("/dev/shm/a/slot-0-1", "run"),
)
