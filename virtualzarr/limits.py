"""Limits on counts that files and documents claim, checked before memory is taken for them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from virtualzarr.errors import OutOfMemoryError, UnsupportedError, short


@dataclass
class Limits:
    """The most of each thing that one file or document may claim.

    A few bytes can claim more than any machine holds. The defaults lie far above what archives
    need; they are settings of `virtualzarr.config.limits`.

    Attributes
    ----------
    references : int
        Cells of the grids of one reference file, or one Icechunk array: each takes about 20 bytes.
    generated : int
        References that the rules (`gen`) of one reference file stand for.
    depth : int
        Groups that lie in one another.
    fields : int
        Fields of a structured data type.
    chunks_read : int
        Chunks of one read, whether they are stored or missing: each takes some 100 bytes.
    virtual_mappings : int
        Mappings of one HDF5 virtual dataset, patterns of names counted by the sources they name.
    virtual_sources : int
        Datasets looked for during one scan because virtual datasets name them.
    element_bytes : int
        Bytes of one element of an array: its fill value takes as many, and some copies.
    attribute_elements : int
        Elements of one attribute: each becomes a Python number.
    document_bytes : int
        Bytes of a metadata document that is compressed in a zip file.

    Examples
    --------
    >>> import virtualzarr
    >>> virtualzarr.config.limits.virtual_mappings
    1000000
    """

    references: int = 1 << 28
    generated: int = 1 << 24
    depth: int = 128
    fields: int = 50_000
    chunks_read: int = 1 << 24
    virtual_mappings: int = 1_000_000
    virtual_sources: int = 1_000_000
    element_bytes: int = 1 << 26
    attribute_elements: int = 1 << 22
    document_bytes: int = 1 << 28

    def __setattr__(self, name: str, value: int) -> None:
        if name not in _NAMES:
            raise AttributeError(f"there is no limit {name!r}; there are {', '.join(_NAMES)}")
        super().__setattr__(name, value)


_LONGEST = 1000  # of what is to be opened in a message: it may be a whole document
_NAMES = tuple(field.name for field in dataclasses.fields(Limits))


def out_of_memory(
    error: MemoryError, *, file: str | None = None, variable: str | None = None
) -> OutOfMemoryError:
    """Return this package's error for one of Python or numpy."""
    return OutOfMemoryError(
        f"there is not enough memory: {error}" if str(error) else "there is not enough memory",
        file=short(file) if file and len(file) > _LONGEST else file,
        variable=variable,
    )


def check_count(limit: str, count: int, what: str, variable: str | None = None) -> None:
    """Refuse a count above a limit.

    Parameters
    ----------
    limit : str
        Name of the limit.
    count : int
    what : str
        What is counted, in the plural.
    variable : str, optional
        Of what array.

    Raises
    ------
    UnsupportedError
        If there are more; the message names the setting.
    """
    from virtualzarr.config import config

    most = getattr(config.limits, limit)
    if count > most:
        raise UnsupportedError(
            f"{count} {what} are more than virtualzarr.config.limits.{limit} allows, {most}",
            variable=variable,
        )
