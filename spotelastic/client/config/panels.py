"""The panels of `up --help`, under which the fields of `JobConfig` stand, in their order."""

JOB = "The job"
NODES = "Nodes"
MONEY = "Money and time"
SAFETY = "Checkpoints and failures"
WATCHING = "Metrics and messages"
ENVIRONMENT = "The script's environment"
NETWORK = "The account's network"
AFTER = "After the job"
PODS = "Pods"
PANELS = (JOB, NODES, PODS, MONEY, SAFETY, WATCHING, ENVIRONMENT, NETWORK, AFTER)
