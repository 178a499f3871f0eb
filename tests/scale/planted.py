"""The command line with a bug planted in it, such as sharding by hand invites; a script."""

import sys
from typing import Any

import jax


def sum_for_mean() -> None:
    """The source gradient is added up over shards instead of averaged."""
    from pd_eqx.objective import Objective

    unweighted = Objective.unweighted

    def summed(self: Objective, grads: Any) -> Any:
        n = jax.device_count()
        return jax.tree.map(lambda g: n * g, unweighted(self, grads))

    Objective.unweighted = summed


def frequencies_by_shard() -> None:
    """The logarithm of the frequency is taken on each shard, and then averaged."""
    from pd_eqx.losses import mean_over_positions, minimality
    from pd_eqx.objective import Minimality

    def value(self: Minimality, context: Any, key: Any) -> Any:
        n = jax.device_count()
        shards = [
            minimality(
                mean_over_positions({site: p[i::n] for site, p in self.penalties(context).items()}),
                self.frequency,
            )
            for i in range(n)
        ]
        return sum(shards[1:], shards[0]) / n

    Minimality.value = value


if __name__ == "__main__":
    {"sum_for_mean": sum_for_mean, "frequencies_by_shard": frequencies_by_shard}[sys.argv.pop(1)]()
    from pd_eqx.cli import main

    main()
