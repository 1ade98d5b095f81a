# SPDX-License-Identifier: Apache-2.0
"""The command ``penstock``: start, stop, status and sql, each on one home.

Exit status: 0 done, 1 an error (``penstock: error: …`` on stderr, with DETAIL and HINT lines),
2 a wrong command line, 3 no node runs on this home.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from penstock import __version__
from penstock.cli import sql as sql_command
from penstock.cli import start as start_command
from penstock.cli import status as status_command
from penstock.cli import stop as stop_command
from penstock.config import default_home, load_settings
from penstock.errors import PenstockError
from penstock.logs import mask_passwords
from penstock.running import NotRunningError

NOT_RUNNING = 3

app = typer.Typer(
    name="penstock",
    help="PostgreSQL's logical replication for the lakehouse, on Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Home = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_HOME",
        help=f"The node's folder.  [default: {default_home()}]",
        show_default=False,
    ),
]


@app.command()
def start(
    home: Home = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the front door.")] = None,
    control: Annotated[
        str | None, typer.Option(help="libpq connection string of an external control database.")
    ] = None,
    spark: Annotated[
        list[str] | None, typer.Option(help="A Spark setting, NAME=VALUE; may be repeated.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run a node in the foreground until SIGTERM, SIGINT or penstock stop."""
    settings = load_settings(
        home=home,
        listen=listen,
        control=control,
        spark=start_command.parse_spark(spark),
        log_level=log_level,
    )
    start_command.start(settings)


@app.command()
def stop(home: Home = None) -> None:
    """Stop the node: it finishes what it is committing and ends."""
    stop_command.stop(_home(home))


@app.command()
def status(
    home: Home = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Show subscriptions, their tables, what was copied, and the lag."""
    status_command.status(_home(home), watch=watch)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sql(context: typer.Context, home: Home = None) -> None:
    """Open psql on the node; everything after the options is passed to psql."""
    sql_command.sql(_home(home), context.args)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"penstock {__version__}")


def run() -> None:
    """Entry point of the console script."""
    try:
        app()
    except NotRunningError as error:
        _complain(str(error))
        sys.exit(NOT_RUNNING)
    except PenstockError as error:
        _complain(f"error: {error}")
        sys.exit(1)
    except ValidationError as error:
        for wrong in error.errors():
            name = ".".join(str(part) for part in wrong["loc"])
            _complain(f'error: invalid value for parameter "{name}": {wrong["msg"]}')
        sys.exit(1)


def _home(home: Path | None) -> Path:
    return load_settings(home=home).home


def _complain(text: str) -> None:
    typer.echo(f"penstock: {mask_passwords(text)}", err=True)
