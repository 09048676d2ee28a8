"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Final

import typer

RunOption = Annotated[Path, typer.Option("--run", metavar="DIR", help="Folder of the run.")]
_REDIS = typer.Option(
    "--redis",
    # A password on a command line can be read by everyone on the host.
    envvar="STATETAP_REDIS",
    metavar="URL",
    help="redis://:PASSWORD@HOST:PORT/0",
)
RedisOption = Annotated[str, _REDIS]
OptionalRedisOption = Annotated[str | None, _REDIS]
#: Messages that may wait in the queue where nobody says otherwise.
DEFAULT_WINDOW: Final = 10_000
WindowOption = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Messages that may wait in the queue; 0 for any number."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, nothing else.")]
ShardPaths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", help="Shards, or folders of shards or runs.", readable=False),
]
ModelOption = Annotated[
    Path, typer.Option("--model", metavar="MODEL_DIR", help="Folder of the model.")
]
