"""The panels of `up --help`, under which the fields of `JobConfig` stand, in their order."""

JOB = "The job"
NODES = "Nodes"
MONEY = "Money and time"
SAFETY = "Checkpoints and failures"
WATCHING = "Metrics and messages"
ENVIRONMENT = "The script's environment"
NETWORK = "The account's network"
AFTER = "After the job"
PANELS = (JOB, NODES, MONEY, SAFETY, WATCHING, ENVIRONMENT, NETWORK, AFTER)
