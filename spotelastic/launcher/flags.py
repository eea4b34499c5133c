"""Defines and parses the command line of `spotelastic run`: torchrun's flags, and its own.

The flags are data, from which help and parser are made. Each is accepted with dashes and with
underscores, and as a variable PET_<NAME> or SPOTELASTIC_<NAME> if it is not given. The parser is
argparse, because everything after the script belongs to the script.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from spotelastic_checkpoints.log_records import FORMATS, LEVELS

from spotelastic.errors import UsageError
from spotelastic.model.in_place import REHEARSE_MODES
from spotelastic.usage_errors import no_such_option, reworded


def _words(text: str) -> list[str]:
    """Split at commas; two commas stand for one in a word."""
    words = text.replace(",,", "\0").split(",") if text else []
    return [word.replace("\0", ",") for word in words]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    `read` converts its text; bool means that it takes no value. `default` is used if it is not
    given, `metavar` names its value in the help. One that `repeats` adds to a list.
    """

    names: str
    help: str
    metavar: str = ""
    default: Any = ""
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def dest(self) -> str:
        """The option's name among the parsed options."""
        return self.names.split()[-1].lstrip("-").replace("-", "_")


NODES = (
    Flag("--nnodes", "nodes of the job (1)", "N|MIN:MAX", "1:1"),
    Flag("--nproc-per-node", "workers on each node (1)", "N|auto|cpu|gpu|xpu"),
    Flag("--standalone", "run on this node alone, with its own etcd", read=bool),
    Flag(
        "--rdzv-backend",
        "how the nodes find each other: etcd (the endpoint is an etcd of yours; the default), "
        "c10d (the hosts of the endpoint run one), static (by --master-addr)",
        "NAME",
    ),
    Flag("--rdzv-endpoint", "where the nodes find each other; default port 29400", "HOST[:PORT],…"),
    Flag("--rdzv-id", "name of the job (default)", "ID", "default"),
    Flag(
        "--rdzv-conf",
        "join_timeout, is_host, await_names, peer_port, etcd_port; TLS: cacert, cert, key, "
        "daemon_tls",
        "KEY=VALUE,…",
    ),
    Flag(
        "--node-rank",
        "rank of this node, for static (node 0 runs the etcd) and pinned ranks",
        "N",
        None,
        int,
    ),
    Flag(
        "--rank-policy",
        "pinned: a node keeps the group rank --node-rank (default for static); "
        "stable: nodes keep the ranks they have",
        "stable|pinned",
        choices=("stable", "pinned"),
    ),
    Flag("--master-addr", "address of node 0, for static (127.0.0.1)", "HOST"),
    Flag(
        "--master-port",
        "port of the workers' TCPStore on the node of rank 0 (static: 29500, with the etcd 1000 "
        "above; otherwise a new port in each round)",
        "PORT",
        None,
        int,
    ),
    Flag("--local-addr", "address at which other nodes reach this node", "IP"),
    Flag("--node-id", "name of this node (made from the host name)", "ID"),
    Flag("--zone", "availability zone of this node", "ZONE"),
)
WORKERS = (
    Flag(
        "--max-restarts",
        "restarts after failures of the script; lost nodes do not count (3)",
        "N",
        3,
        int,
    ),
    Flag(
        "--exit-barrier-timeout",
        "how long a node that has finished waits for the other nodes (300)",
        "SECONDS",
        300.0,
        float,
    ),
    Flag("--gang", "fail the job when a node is lost", read=bool),
    Flag("--role", "value of ROLE_NAME for the workers", "NAME", "default"),
    Flag("-m --module", "run a module, as python -m does", read=bool),
    Flag("--no-python", "run a program that is not Python", read=bool),
    Flag("--run-path", "run the script with runpy.run_path", read=bool),
    Flag("--preload", "modules to import once, before workers are forked", "MODULE,…", [], _words),
    Flag(
        "--no-warm", "start each worker as a new process; do not fork it from a warm one", read=bool
    ),
    Flag("--no-gpu-check", "neither check the GPUs before joining nor watch them", read=bool),
    Flag(
        "--stall-timeout",
        "restart the workers if no step of the Checkpointer completes for this long; 0: never",
        "SECONDS",
        0.0,
        float,
    ),
    Flag("--virtual-local-rank", "give each worker LOCAL_RANK 0 and one visible GPU", read=bool),
    Flag(
        "--numa-binding",
        "bind workers to the cores near their GPU",
        "MODE",
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    Flag(
        "--signals-to-handle",
        "signals on which this node leaves the job",
        "NAME,…",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Flag(
        "--grace-period",
        "how long after such a signal this node is killed, as a pod is (0: it is not)",
        "SECONDS",
        0.0,
        float,
    ),
    Flag(
        "--shutdown-timeout",
        "time between SIGTERM and SIGKILL for a worker (10)",
        "SECONDS",
        None,
        float,
    ),
)
OUTPUT = (
    Flag("--log-dir", "keep the workers' logs in this folder", "DIR"),
    Flag("-r --redirects", "send streams to a file only: 1 stdout, 2 stderr, 3 both", "N|RANK:N,…"),
    Flag("-t --tee", "also send streams to a file: 1 stdout, 2 stderr, 3 both", "N|RANK:N,…"),
    Flag("--local-ranks-filter", "show the output of these local ranks only", "RANK,…"),
    Flag(
        "--duplicate-stdout-filters",
        "copy stdout lines that contain one of these texts to filtered_stdout.log",
        "TEXT,…",
        [],
        _words,
    ),
    Flag(
        "--duplicate-stderr-filters",
        "copy stderr lines that contain one of these texts to filtered_stderr.log",
        "TEXT,…",
        [],
        _words,
    ),
    Flag(
        "--log-format",
        "what spotelastic itself logs, on stderr: lines for people, or a JSON record each",
        "text|json",
        "text",
        choices=FORMATS,
    ),
    Flag(
        "--log-level",
        f"least severe log records that are shown: {', '.join(LEVELS)} (info)",
        "LEVEL",
        "info",
        choices=LEVELS,
    ),
    Flag("--metrics-port", "serve metrics for Prometheus there (IP: 127.0.0.1)", "[IP:]PORT"),
)
CHECKPOINTS = (
    Flag("--storage", "where checkpoints go (./runs/SCRIPT; with --rdzv-id ./runs/ID)", "URL"),
    Flag(
        "--snapshot-every",
        "interval of snapshots in memory: 20, 30s, auto (by cost)",
        "N|TIME",
        "auto",
    ),
    Flag(
        "--checkpoint-every",
        "interval of checkpoints in the storage: 500, 10m, auto",
        "N|TIME",
        "auto",
    ),
    Flag(
        "--replicate",
        "keep shards of one node in another's memory, too: auto, off, 100MB (a second)",
        "RATE",
        "auto",
    ),
    Flag("--keep-last", "how many of the newest checkpoints to keep (3)", "N", 3, int),
    Flag(
        "--keep-every",
        "also keep checkpoints whose step is a multiple of this (0: none)",
        "N",
        0,
        int,
    ),
    Flag(
        "--output",
        "folder of the script whose files are kept beside the checkpoints; can be repeated",
        "DIR,…",
        [],
        _words,
        repeats=True,
    ),
    Flag(
        "--fresh",
        "begin at step 0; earlier checkpoints stay stored but are no longer used",
        read=bool,
    ),
    Flag(
        "--rehearse",
        "repeat an early step, and check that it gives the same result (auto); strict: fail if it "
        "does not",
        "|".join(REHEARSE_MODES),
        "auto",
        choices=REHEARSE_MODES,
    ),
    Flag(
        "--exact",
        "the same bits on any nodes: set and compare what changes them; for scripts with "
        "virtual ranks",
        read=bool,
    ),
    Flag(
        "--guard",
        "skip steps whose loss or gradients are NaN, infinite, or far out of their history; go "
        "back after three in a row",
        read=bool,
    ),
    Flag(
        "--audit",
        "have other ranks compute a virtual rank again, in one step of so many (off)",
        "1/STEPS",
    ),
    Flag("--allow-uncommitted", "succeed even if the last step could not be committed", read=bool),
    Flag("--take-over", "continue the checkpoints of another run", read=bool),
)
WITHOUT_EFFECT = (
    Flag("--monitor-interval", "not needed: exits are events, nothing is polled", "SECONDS"),
    Flag("--start-method", "not needed: workers are forked from a warm process", "METHOD"),
    Flag("--event-log-handler", "not needed: events are kept in etcd", "NAME"),
    Flag("--logs-specs", "use --log-dir, --redirects and --tee", "NAME"),
    Flag("--use-env", "not needed: the local rank is always in LOCAL_RANK", read=bool),
)
"""Flags that are accepted so that a command written for another launcher works unchanged."""
GROUPS: Mapping[str, tuple[Flag, ...]] = {
    "nodes": NODES,
    "workers": WORKERS,
    "output": OUTPUT,
    "checkpoints": CHECKPOINTS,
    "accepted, without effect": WITHOUT_EFFECT,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise the parser's complaint as a `UsageError`."""
        raise UsageError(f"{reworded(message)} (see `spotelastic run --help`)")

    def print_help(self, file: Any = None) -> None:
        """Print the help in the look of the other commands."""
        from spotelastic.launcher import help as launcher_help

        launcher_help.show()


def parse(args: Sequence[str], environ: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """Return the options by name; `script` and `args` are what to run. Raises `UsageError`."""
    made = parser(environ)
    options = made.parse_args(_spelled_out(made, args))
    for flag in (flag for flags in GROUPS.values() for flag in flags if flag.choices):
        value = getattr(options, flag.dest)  # argparse checks only what is typed, not defaults
        if value and value not in flag.choices:
            name = f"PET_{flag.dest.upper()}"
            name = name if name in environ else f"SPOTELASTIC_{flag.dest.upper()}"
            made.error(f"{name}={value}: choose from {', '.join(flag.choices)}")
    return options


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser; variables of the environment are its defaults."""
    made = _Parser(
        prog="spotelastic run",
        allow_abbrev=False,
    )
    for title, flags in GROUPS.items():
        group = made.add_argument_group(title)
        for flag in flags:
            name = flag.dest.upper()
            told = environ.get(f"PET_{name}")
            _add(group, flag, environ.get(f"SPOTELASTIC_{name}") if told is None else told)
    made.add_argument("script")
    made.add_argument("args", nargs=argparse.REMAINDER)
    return made


def _spelled_out(made: argparse.ArgumentParser, args: Sequence[str]) -> list[str]:
    """Return the arguments with abbreviated flags written in full, up to the script.

    argparse's own abbreviations would also apply to the script's arguments, and would find each
    flag twice: with dashes and with underscores.
    """
    actions = made._option_string_actions
    spelled = list(args)
    at = 0
    while at < len(spelled) and spelled[at].startswith("-") and spelled[at] != "--":
        name, equals, value = spelled[at].partition("=")
        if name.startswith("--") and name not in actions:
            name = _meant(made, name, actions)
            spelled[at] = f"{name}{equals}{value}"
        takes_one = name in actions and actions[name].nargs is None
        at += 2 if takes_one and not equals else 1
    return spelled


def _meant(made: argparse.ArgumentParser, name: str, known: Mapping[str, argparse.Action]) -> str:
    """Return the only flag that begins with `name`."""
    dashed = {"--" + full.lstrip("-").replace("_", "-") for full in known if full[:2] == "--"}
    wanted = "--" + name.lstrip("-").replace("_", "-")
    fitting = sorted(full for full in dashed if full.startswith(wanted))
    by_dest = {known[full].dest if full in known else full: full for full in fitting}
    if len(by_dest) > 1:
        made.error(f"{name} could be {', '.join(sorted(by_dest.values()))}")
    if not by_dest:
        told = no_such_option(wanted, dashed)
        made.error(told.replace(wanted, name, 1))
    return next(iter(by_dest.values()))


def given(options: argparse.Namespace, flags: Sequence[Flag]) -> list[str]:
    """Return the names of those flags that differ from their default."""
    names = []
    for flag in flags:
        default = False if flag.read is bool else flag.default
        if getattr(options, flag.dest) != default:
            names.append(flag.names.split()[-1])
    return names


class _Repeated(argparse.Action):
    """Adds to a list. What is given takes the place of the default as a whole."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if before is self.default else [*before, *values])


def _add(group: Any, flag: Flag, variable: str | None) -> None:
    names = flag.names.split()
    settings: dict[str, Any] = {"dest": flag.dest, "help": flag.help}
    if flag.read is bool:
        settings |= {"action": "store_true", "default": variable not in (None, "", "0")}
    else:
        settings |= {
            "default": flag.default if variable is None else variable,
            "type": flag.read,
            "choices": flag.choices or None,
            "metavar": flag.metavar,
            "action": _Repeated if flag.repeats else "store",
        }
    group.add_argument(*names, **settings)
    underscored = "--" + flag.dest
    if underscored not in names:
        group.add_argument(underscored, **settings | {"help": argparse.SUPPRESS})
