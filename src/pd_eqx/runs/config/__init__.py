"""What a run can be configured by: one class for each kind of thing; `config_file` reads them from YAML."""

from pd_eqx.runs.config.base import trajectory
from pd_eqx.runs.config.evaluation import EvaluationConfig
from pd_eqx.runs.config.run import Config

__all__ = ["Config", "EvaluationConfig", "trajectory"]
