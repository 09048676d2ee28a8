"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

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
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, nothing else.")]
ShardPaths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH", help="Shards, or folders of shards or runs.", readable=False),
]
ModelOption = Annotated[
    Path, typer.Option("--model", metavar="MODEL_DIR", help="Folder of the model.")
]
