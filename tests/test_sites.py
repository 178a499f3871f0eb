"""Sites are chosen by pattern, and a pattern that chooses nothing is an error."""

import pytest

from pd_eqx.sites import Site, UnknownSiteError, select_sites

SITES = (
    Site("embed", 11, 4),
    Site("layers.0.mlp_in", 4, 8),
    Site("layers.0.mlp_out", 8, 4),
    Site("layers.1.mlp_in", 4, 8),
    Site("layers.1.mlp_out", 8, 4),
)


def test_patterns_choose_sites_in_the_target_s_order() -> None:
    chosen = select_sites(SITES, {"layers.1.*": 7, "layers.0.mlp_out": 3, "embed": 5})
    assert list(chosen.items()) == [
        ("embed", 5),
        ("layers.0.mlp_out", 3),
        ("layers.1.mlp_in", 7),
        ("layers.1.mlp_out", 7),
    ]


def test_the_last_of_two_patterns_counts() -> None:
    general_first = select_sites(SITES, {"layers.*": 7, "layers.1.mlp_in": 3})
    assert general_first["layers.1.mlp_in"] == 3
    general_last = select_sites(SITES, {"layers.1.mlp_in": 3, "layers.*": 7})
    assert general_last["layers.1.mlp_in"] == 7


def test_case_matters() -> None:
    with pytest.raises(UnknownSiteError):
        select_sites(SITES, {"EMBED": 3})


def test_a_misspelt_site_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownSiteError, match=r"'layers.0.mpl_in'.*nearest.*'layers.0.mlp_in'"):
        select_sites(SITES, {"embed": 3, "layers.0.mpl_in": 3})


def test_a_target_without_sites_is_said_to_have_none() -> None:
    with pytest.raises(UnknownSiteError, match="no sites"):
        select_sites((), {"*": 3})


@pytest.mark.parametrize("count", [0, -2])
def test_no_components_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        select_sites(SITES, {"embed": count})


def test_two_sites_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\['embed'\]"):
        select_sites((*SITES, Site("embed", 4, 4)), {"embed": 3})


@pytest.mark.parametrize(("name", "d_in", "d_out"), [("", 1, 1), ("a", 0, 1), ("a", 1, -1)])
def test_what_is_no_matrix_is_refused(name: str, d_in: int, d_out: int) -> None:
    with pytest.raises(ValueError, match="a site needs"):
        Site(name, d_in, d_out)
