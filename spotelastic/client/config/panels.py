"""The panels of `up --help`, under which the fields of `JobConfig` stand."""

PANELS = (
    "The job",
    "Nodes",
    "Money and time",
    "Checkpoints and failures",
    "Metrics and messages",
    "The script's environment",
    "The account's network",
    "After the job",
)
