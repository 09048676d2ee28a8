"""All trainers that can be exported for."""

from typing import Final

from statetap_producer.exporting.angelslim import AngelSlim
from statetap_producer.exporting.modelopt import ModelOpt
from statetap_producer.exporting.specforge import SpecForge
from statetap_producer.exporting.speculators import Speculators
from statetap_producer.exporting.trainer_format import TrainerFormat

#: By the name that people give to ``--to``.
FORMATS: Final[dict[str, TrainerFormat]] = {
    trainer.name: trainer for trainer in (SpecForge(), Speculators(), ModelOpt(), AngelSlim())
}
