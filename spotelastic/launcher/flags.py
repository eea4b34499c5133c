"""The command line of `spotelastic run`: torchrun's flags, Bagua's, and our own, as data.

Every flag is accepted with dashes and with underscores, and as a variable PET_<NAME> or
SPOTELASTIC_<NAME> for when it is not given. argparse rather than typer: everything after the script
belongs to the script.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from spotelastic.errors import UsageError
from spotelastic.usage_errors import no_such_option, reworded


def _words(text: str) -> list[str]:
    """Separated by commas; two commas stand for one that is meant."""
    words = text.replace(",,", "\0").split(",") if text else []
    return [word.replace("\0", ",") for word in words]


@dataclass(frozen=True, slots=True)
class Flag:
    """`read` is what its text becomes; bool: it takes no value. `default` is shown where it says
    something; `metavar` is its value in the help."""

    names: str
    help: str
    metavar: str = ""
    default: Any = ""
    read: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()

    @property
    def dest(self) -> str:
        return self.names.split()[-1].lstrip("-").replace("-", "_")


NODES = (
    Flag("--nnodes", "nodes of the job (1)", "N|MIN:MAX", "1:1"),
    Flag("--nproc-per-node", "workers on each node (1)", "N|auto|cpu|gpu|xpu"),
    Flag("--standalone", "this node alone, with an etcd of its own", read=bool),
    Flag("--rdzv-backend", "how the nodes meet: docs/how-to/own-machines.md", "NAME"),
    Flag("--rdzv-endpoint", "where they meet; a port left out is 29400", "HOST[:PORT],…"),
    Flag("--rdzv-id", "name of the job (default)", "ID", "default"),
    Flag(
        "--rdzv-conf",
        "join_timeout, is_host, peer_port, etcd_port; TLS: cacert, cert, key, daemon_tls",
        "KEY=VALUE,…",
    ),
    Flag("--node-rank", "of static: node 0 runs the etcd; see --rank-policy", "N", None, int),
    Flag(
        "--rank-policy",
        "pinned: a node has the group rank --node-rank while it lives (static's default); "
        "stable: ranks stay with those who have them",
        "stable|pinned",
        choices=("stable", "pinned"),
    ),
    Flag("--master-addr", "of static: address of node 0 (127.0.0.1)", "HOST"),
    Flag(
        "--master-port",
        "where the workers meet, on the node of rank 0 (static: 29500, and the etcd 1000 above; "
        "else a new one in each round)",
        "PORT",
        None,
        int,
    ),
    Flag("--local-addr", "address of this node, as the others reach it", "IP"),
    Flag("--node-id", "name of this node (from the host)", "ID"),
    Flag("--zone", "availability zone of this node", "ZONE"),
)
WORKERS = (
    Flag("--max-restarts", "failures of the script; lost nodes are not counted (3)", "N", 3, int),
    Flag(
        "--exit-barrier-timeout",
        "how long a node that has finished waits for the others (300)",
        "SECONDS",
        300.0,
        float,
    ),
    Flag("--gang", "fail the job when a node is lost", read=bool),
    Flag("--role", "ROLE_NAME of the workers", "NAME", "default"),
    Flag("-m --module", "what follows is a module, as for python -m", read=bool),
    Flag("--no-python", "what follows is a program", read=bool),
    Flag("--run-path", "run the script with runpy.run_path", read=bool),
    Flag("--preload", "modules to import once, before workers are forked", "MODULE,…", [], _words),
    Flag("--no-warm", "start workers as fresh processes, do not fork them", read=bool),
    Flag(
        "--stall-timeout",
        "restart when no step is done for so long; 0: never. Counts steps of the Checkpointer",
        "SECONDS",
        0.0,
        float,
    ),
    Flag("--virtual-local-rank", "LOCAL_RANK 0 and one visible GPU for each", read=bool),
    Flag(
        "--numa-binding",
        "bind workers to the cores near their GPU",
        "MODE",
        choices=("node", "socket", "exclusive", "core-complex"),
    ),
    Flag(
        "--signals-to-handle",
        "signals that ask this node to leave",
        "NAME,…",
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    ),
    Flag("--shutdown-timeout", "from a worker's SIGTERM to SIGKILL (10)", "SECONDS", None, float),
)
OUTPUT = (
    Flag("--log-dir", "keep workers' logs here", "DIR"),
    Flag("-r --redirects", "streams that go to a file only: 1 out, 2 err, 3 both", "N|RANK:N,…"),
    Flag("-t --tee", "streams that go to a file of their own as well", "N|RANK:N,…"),
    Flag("--local-ranks-filter", "show the output of these only", "RANK,…"),
    Flag(
        "--duplicate-stdout-filters",
        "lines of stdout that also go to filtered_stdout.log",
        "TEXT,…",
        [],
        _words,
    ),
    Flag(
        "--duplicate-stderr-filters",
        "lines of stderr that also go to filtered_stderr.log",
        "TEXT,…",
        [],
        _words,
    ),
)
CHECKPOINTS = (
    Flag("--storage", "where checkpoints go (./runs/ID)", "URL"),
    Flag("--snapshot-every", "save into memory: 20, 30s (auto: by its cost)", "N|TIME", "auto"),
    Flag("--checkpoint-every", "commit into storage: 500, 10m (auto)", "N|TIME", "auto"),
    Flag("--keep-last", "newest checkpoints that are kept (3)", "N", 3, int),
    Flag("--keep-every", "and those whose step is a multiple of this (0: none)", "N", 0, int),
    Flag("--fresh", "begin at step 0; earlier checkpoints stay, and count no more", read=bool),
    Flag("--allow-uncommitted", "succeed although the last step was not committed", read=bool),
    Flag("--take-over", "continue checkpoints of another run", read=bool),
)
WITHOUT_EFFECT = (
    Flag("--monitor-interval", "exits are events here: nothing is polled", "SECONDS"),
    Flag("--start-method", "workers are forked from a warm process", "METHOD"),
    Flag("--event-log-handler", "events are kept in etcd", "NAME"),
    Flag("--logs-specs", "see --log-dir, --redirects and --tee", "NAME"),
    Flag("--use-env", "the local rank always comes as LOCAL_RANK", read=bool),
)
"""Accepted, so that a command written for another launcher works as it stands."""
BAGUA = (
    Flag("--bagua-service-port", "of its service (29501)", "PORT", None, int),
    Flag("--default-bucket-size", "of a bucket (10485760)", "BYTES", None, int),
    Flag("--autotune-level", "0: off (0)", "LEVEL", None, int),
    Flag("--autotune-max-samples", "at most (60)", "N", None, int),
    Flag(
        "--autotune-sampling-confidence-time",
        "of a sample (5)",
        "SECONDS",
        None,
        float,
    ),
    Flag("--autotune-warmup-time", "before the first (30)", "SECONDS", None, float),
    Flag("--is-output-autotune-log", "write its log", read=bool),
    Flag("--enable-bagua-net", "load Bagua's network plug-in", read=bool),
    Flag("--bagua-net_switch_on --bagua-net-switch-on", "the same", read=bool),
)
GROUPS: Mapping[str, tuple[Flag, ...]] = {
    "nodes": NODES,
    "workers": WORKERS,
    "output": OUTPUT,
    "checkpoints": CHECKPOINTS,
    "Bagua": BAGUA,
    "accepted, without effect": WITHOUT_EFFECT,
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{reworded(message)} (see `spotelastic run --help`)")

    def print_help(self, file: Any = None) -> None:
        from spotelastic.launcher import help as launcher_help

        launcher_help.show()


def parse(args: Sequence[str], environ: Mapping[str, str] = os.environ) -> argparse.Namespace:
    """The options by name; `script` and `args` are what to run. Raises `UsageError`."""
    made = parser(environ)
    options = made.parse_args(_spelled_out(made, args))
    for flag in (flag for flags in GROUPS.values() for flag in flags if flag.choices):
        value = getattr(options, flag.dest)  # argparse looks at what is typed only
        if value and value not in flag.choices:
            name = flag.dest.upper()
            made.error(f"PET_{name}={value}: choose from {', '.join(flag.choices)}")
    return options


def parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
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
    """The same with abbreviated flags in full, up to the script. argparse's own abbreviations would
    also look at the script's arguments, and find each flag twice: with dashes and underscores."""
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
    """The one flag that begins so."""
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
    """Names of those flags that have another value than their default."""
    names = []
    for flag in flags:
        default = False if flag.read is bool else flag.default
        if getattr(options, flag.dest) != default:
            names.append(flag.names.split()[-1])
    return names


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
        }
    group.add_argument(*names, **settings)
    underscored = "--" + flag.dest
    if underscored not in names:
        group.add_argument(underscored, **settings | {"help": argparse.SUPPRESS})
