"""Every target that a configuration can name."""

from typing import Annotated

from pydantic import Field

from pd_eqx.runs.config.language_models import LanguageModelTarget, PretrainedTarget
from pd_eqx.runs.config.toys import (
    InductionTarget,
    ModularAdditionTarget,
    ResidMLPTarget,
    TMSTarget,
)

AnyTarget = Annotated[
    TMSTarget
    | ResidMLPTarget
    | InductionTarget
    | ModularAdditionTarget
    | LanguageModelTarget
    | PretrainedTarget,
    Field(discriminator="kind"),
]
