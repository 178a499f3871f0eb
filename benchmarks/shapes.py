"""Examples in the shapes that the peer was timed in: the name of one, and overrides, as the scripts here take them.

Batch, components and importance functions are the peer's. That it ran TMS 40-10 with this batch is an assumption.
"""

from collections.abc import Mapping

# By the peer's name of each.
SHAPES: Mapping[str, str] = {
    "tms_5-2": "tms_5-2_published",
    "tms_40-10": (
        "tms_5-2_published,target.n_features=40,target.n_hidden=10,sites.linear1=200,sites.linear2=200"
    ),
    "resid_mlp_1": "resid_mlp_1_published",
    "resid_mlp_2": "resid_mlp_1_published,target.n_layers=2",
    "resid_mlp_3": (
        "resid_mlp_1_published,target.n_layers=3,target.n_features=102,target.n_neurons=51,"
        "sites.layers.*.mlp_in=500,sites.layers.*.mlp_out=500"
    ),
}
