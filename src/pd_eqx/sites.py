"""Sites: the weight matrices of a target that can be decomposed, and how a person names them.

A site is known by its name and its shape alone; it holds no array. Names are chosen by glob patterns,
and a pattern that matches nothing is an error, because a misspelt site would otherwise be left whole
and the run would look better than it is.
"""

import dataclasses
import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence


class UnknownSiteError(ValueError):
    """A pattern names no site of the target."""


@dataclasses.dataclass(frozen=True)
class Site:
    """One decomposable weight matrix `W [d_in, d_out]`, applied as `x @ W`."""

    name: str
    d_in: int
    d_out: int

    def __post_init__(self) -> None:
        """Refuses a site that has no entries or no name."""
        if not self.name or self.d_in < 1 or self.d_out < 1:
            raise ValueError(f"a site needs a name and sizes of 1 or more, found {self}")


def select_sites(sites: Sequence[Site], patterns: Mapping[str, int]) -> dict[str, int]:
    """The number of components of each chosen site.

    **Arguments:**

    - `sites`: the target's sites, in its own order.
    - `patterns`: number of components `C` by glob pattern (`layers.*.mlp_in`). Where several patterns
      match a site, the last one counts.

    **Returns:** `C` by site name, in the target's order; sites that no pattern names are left out.

    **Errors:** `UnknownSiteError` for a pattern that matches nothing, naming the nearest site;
    `ValueError` for a `C` below one, and for a target that gives two sites one name.
    """
    chosen: dict[str, int] = {}
    names = [site.name for site in sites]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            f"the target has more than one site named {twice}; each needs its own name"
        )
    for pattern, count in patterns.items():
        if count < 1:
            raise ValueError(
                f"site pattern {pattern!r} asks for {count} components; ask for 1 or more"
            )
        chosen.update(dict.fromkeys(_matching(names, pattern), count))
    return {name: chosen[name] for name in names if name in chosen}


def sites_matching(names: Sequence[str], patterns: Iterable[str]) -> tuple[str, ...]:
    """The sites that at least one pattern names, in the order of `names`.

    **Errors:** `UnknownSiteError` for a pattern that matches nothing, naming the nearest site.
    """
    chosen = {name for pattern in patterns for name in _matching(names, pattern)}
    return tuple(name for name in names if name in chosen)


def _matching(names: Sequence[str], pattern: str) -> list[str]:
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matching:
        nearest = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        hint = f"; the nearest site is {nearest[0]!r}" if nearest else "; there are no sites"
        raise UnknownSiteError(f"site pattern {pattern!r} matches no site{hint}")
    return matching
