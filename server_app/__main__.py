"""Commands for whoever starts runs: `python -m server_app <command> --help`."""

import argparse
import sys

from server_app import check, compare, export, launch, watch
from strategies.protocol.settings import SettingsError
from strategies.protocol.text import Screen

COMMANDS = (check, compare, export, launch, watch)


def main() -> None:
    """Run the command that the command line names."""
    Screen.install()
    parser = argparse.ArgumentParser(prog="python -m server_app", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    for module in COMMANDS:
        module.add_command(commands)
    arguments = parser.parse_args()
    try:
        arguments.command(arguments)
    except SettingsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
