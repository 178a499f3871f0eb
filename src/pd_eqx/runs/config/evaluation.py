"""What is measured, in a configuration."""

from pd_eqx.runs.config.base import Count, Fraction, Node, Positive, beside_trajectory


class EvaluationConfig(Node):
    """What is measured in the loop and at the end."""

    every: Count | None = beside_trajectory(None)
    figures_every: Count | None = beside_trajectory(None)
    batches: Count = beside_trajectory(8)
    pgd_steps: Count = beside_trajectory(20)
    pgd_step_size: Positive = beside_trajectory(0.1)
    alive_importance: Fraction = beside_trajectory(0.1)
    alive_share: Fraction = beside_trajectory(1e-3)
