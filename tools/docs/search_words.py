"""Words that people type into the search, by the page that answers them.

A page's own text often has other words for the same thing. The hooks give these to the search as
tags, which count more than any text, so a word stands with one page where that is possible.
tests/unit/docs/test_search.py asks forty questions.
"""

from collections.abc import Mapping

WORDS: Mapping[str, tuple[str, ...]] = {
    "explanation/architecture.md": ("how does it work", "design", "overview"),
    "explanation/cold-start.md": ("startup time", "boot time", "how long to start"),
    "explanation/failures.md": ("max restarts", "what happens when a node dies", "node lost"),
    "explanation/promises.md": ("guarantee", "lose work", "data loss"),
    "explanation/security.md": ("TLS", "certificates", "encryption in transit", "firewall"),
    "how-to/adapt-a-script.md": ("convert my script", "minimal changes"),
    "how-to/change-a-job.md": (
        *(
            "stop a job",
            "pause",
            "continue tomorrow",
            "scale",
            "add nodes",
            "more nodes",
            "resize",
            "restart",
        ),
        *("change arguments", "hyperparameters"),
    ),
    "how-to/choose-a-loop.md": ("which loop", "steps or step", "where to begin with a script"),
    "how-to/choose-capacity.md": (
        *("spot price", "instance type", "p4d", "p5", "g5", "H100", "A100", "on demand"),
        *("InsufficientInstanceCapacity", "no capacity", "availability zone", "EFA"),
    ),
    "how-to/choose-intervals.md": ("checkpoint frequency", "how often to save", "save every"),
    "how-to/code-and-packages.md": (
        *("requirements.txt", "pip install", "dependencies", "ModuleNotFoundError", "conda", "uv"),
        *("environment variable", "upload code", "gitignore"),
    ),
    "how-to/dashboard.md": ("web UI", "loss curve", "live view"),
    "how-to/data.md": (
        *("gradient accumulation", "batch size", "microbatch", "DataLoader", "shuffle"),
        *("DistributedSampler", "dataset", "S3 data", "streaming data"),
    ),
    "how-to/encrypt-with-your-own-key.md": ("KMS", "SSE", "encryption at rest"),
    "how-to/experiment-trackers.md": ("wandb", "Weights & Biases", "MLflow", "TensorBoard"),
    "how-to/from-dcp.md": ("torch.distributed.checkpoint", "async_save"),
    "how-to/from-torchrun.md": ("torchrun", "torchelastic", "torch.distributed.launch", "rdzv"),
    "how-to/fsdp2.md": ("FSDP", "fully_shard", "sharded model", "large model", "tensor parallel"),
    "how-to/gpus.md": ("multi-GPU", "nproc", "CUDA_VISIBLE_DEVICES", "MIG"),
    "how-to/hangs.md": ("NCCL timeout", "watchdog", "stuck", "deadlock", "freeze", "no progress"),
    "how-to/hugging-face-and-lightning.md": (
        *("transformers", "Trainer", "PyTorch Lightning", "accelerate", "fine-tune", "LoRA"),
    ),
    "how-to/import-export.md": (
        *("pretrained weights", "torch.load", "export model", "safetensors", "single file"),
        "load a checkpoint",
    ),
    "how-to/in-place.md": ("torch.compile", "DDP", "without restarting processes", "undo a step"),
    "how-to/interrupt-and-drill.md": ("simulate interruption", "test preemption", "chaos"),
    "how-to/jobs-and-storage.md": (
        *("resume", "resuming", "start over", "from scratch", "fresh", "where is my checkpoint"),
    ),
    "how-to/keep-checkpoints.md": ("delete old checkpoints", "retention", "corrupt checkpoint"),
    "how-to/keep-files.md": ("output files", "download results", "artifacts", "save a plot"),
    "how-to/kubernetes.md": ("k8s", "EKS", "GKE", "pods", "manifest", "YAML"),
    "how-to/laptops.md": ("macOS", "Mac", "Windows", "WSL"),
    "how-to/limit-cost.md": ("how much does it cost", "budget", "spend", "money", "estimate"),
    "how-to/metrics.md": ("Prometheus", "Grafana", "monitoring", "metrics", "alerts"),
    "how-to/move-a-job.md": ("another region", "change region", "failover"),
    "how-to/notifications.md": ("Slack", "email", "webhook", "Teams", "notify me when it ends"),
    "how-to/object-stores.md": ("GCS", "Google Cloud", "Azure", "MinIO", "Cloudflare R2", "NFS"),
    "how-to/output.md": ("print", "stdout", "log file", "where are my logs"),
    "how-to/own-image.md": ("Docker", "container image", "ECR"),
    "how-to/own-machines.md": ("on premise", "bare metal", "my own servers", "Slurm"),
    "how-to/own-network.md": ("VPC", "private subnet", "proxy", "no internet"),
    "how-to/prepare-an-account.md": (
        *("quota", "vCPU limit", "MaxSpotInstanceCountExceeded", "credentials", "SSO", "AWS login"),
    ),
    "how-to/reach-a-node.md": ("SSH", "shell", "log in to a node"),
    "how-to/read-the-report.md": ("goodput", "interruption cost", "savings"),
    "how-to/rehearse.md": ("reproducible", "deterministic", "does my script resume"),
    "how-to/secrets.md": ("API key", "password", "access token", "WANDB_API_KEY", "HF_TOKEN"),
    "how-to/shared-memory.md": ("/dev/shm", "shm-size", "bus error"),
    "how-to/slow-nodes.md": ("straggler", "slow", "throughput"),
    "how-to/take-down.md": (
        *(
            "kill a job",
            "delete cluster",
            "delete everything",
            "terminate",
            "stop paying",
            "clean up",
        ),
    ),
    "how-to/what-is-saved.md": (
        *("optimizer state", "learning rate scheduler", "random seed", "EMA", "early stopping"),
        *("mixed precision", "GradScaler"),
    ),
    "how-to/why-it-failed.md": (
        *("out of memory", "OOM", "CUDA error", "crash", "traceback", "exception", "SIGKILL"),
        *("job failed", "fail", "error"),
    ),
    "reference/exit-codes.md": ("exit code", "exit status", "return code"),
    "reference/permissions.md": ("IAM policy", "S3 permission", "AccessDenied", "not authorized"),
    "tutorials/first-job.md": ("quickstart", "get started", "hello world", "try it", "install"),
}
