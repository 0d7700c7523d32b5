"""Limits on counts that files and documents claim, checked before memory is taken for them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from virtualzarr.errors import UnsupportedError


@dataclass
class Limits:
    """The most of each thing that one file or document may claim.

    A few bytes can claim more than any machine holds. The defaults lie far above what archives
    need; they are settings of `virtualzarr.config.limits`.

    Attributes
    ----------
    virtual_mappings : int
        Mappings of one HDF5 virtual dataset, patterns of names counted by the sources they name.
    virtual_sources : int
        Datasets looked for during one scan because virtual datasets name them.

    Examples
    --------
    >>> import virtualzarr
    >>> virtualzarr.config.limits.virtual_mappings
    1000000
    """

    virtual_mappings: int = 1_000_000
    virtual_sources: int = 1_000_000

    def __setattr__(self, name: str, value: int) -> None:
        if name not in _NAMES:
            raise AttributeError(f"there is no limit {name!r}; there are {', '.join(_NAMES)}")
        super().__setattr__(name, value)


_NAMES = tuple(field.name for field in fields(Limits))


def check_count(limit: str, count: int, what: str) -> None:
    """Refuse a count above a limit.

    Parameters
    ----------
    limit : str
        Name of the limit.
    count : int
    what : str
        What is counted, in the plural.

    Raises
    ------
    UnsupportedError
        If there are more; the message names the setting.
    """
    from virtualzarr.config import config

    most = getattr(config.limits, limit)
    if count > most:
        raise UnsupportedError(
            f"{count} {what} are more than virtualzarr.config.limits.{limit} allows, {most}"
        )
