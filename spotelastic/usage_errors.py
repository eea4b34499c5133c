"""Rewords the mistakes that command line parsers find, so that all commands report them alike.

The parsers are typer, and argparse for `run`.
"""

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

_REWORDED = (
    (r"No such command '(.*?)'\. Did you mean '(.*?)'.*", r"no such command: \1; did you mean \2?"),
    (r"No such command '(.*?)'\.?", r"no such command: \1"),
    (r"Option '(.*?)' requires .*", r"\1: needs a value"),
    (r"Option '(.*?)' does not take a value\.?", r"\1: takes no value"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"not understood: \1"),
    (r"Missing (?:argument|parameter|option):? '?([^'.]*)'?\.?", r"\1 is missing"),
    (r"Invalid value for '(.*?)': (.*)", r"\1: \2"),
    (r"(.*: )?Input should be a valid integer.*", r"\1needs a whole number"),
    (r"(.*: )?Input should be a valid number.*", r"\1needs a number"),
    (r"(.*: )?Input should be (.*)", r"\1needs to be \2"),
    (r"argument (.*): invalid int value: '(.*)'", r"\1 \2: needs a whole number"),
    (r"argument (.*): invalid float value: '(.*)'", r"\1 \2: needs a number"),
    (r"argument (.*): expected one argument", r"\1: needs a value"),
    (r"argument (.*): ignored explicit argument .*", r"\1: takes no value"),
    (r"argument (.*): invalid choice: '(.*?)' \(choose from (.*)\)", r"\1 \2: choose from \3"),
    (r"the following arguments are required: .*", "no script is given"),
)


def reworded(message: str) -> str:
    """Return a parser's message in the words that all commands use."""
    text = message.strip().removesuffix(".")
    for pattern, words in _REWORDED:
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is not None:
            text = match.expand(words)
    return re.sub(r"choose from (.*)", lambda found: found[0].replace("'", ""), text)


def no_such_option(name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown option, with the nearest known one as a suggestion."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=1)
    return f"no such option: {name}" + (f"; did you mean {near[0]}?" if near else "")


def named_without_option(command: str, args: Sequence[str]) -> str:
    """Return the message for a cluster that is named by --name where the name is an argument.

    `args` are what was typed after the program's name; `command` has it, as in "spotelastic scale".
    """
    name, others = "NAME", []
    rest = iter(args[len(command.split()) - 1 :])
    for each in rest:
        if each == "--name":
            name = next(rest, name)
        elif each.startswith("--name="):
            name = each.removeprefix("--name=")
        else:
            others.append(each)
    typed = shlex.join([*command.split(), name, *others])
    return f"no such option: --name; a cluster is named without one: `{typed}`"
