"""Limits on counts that files and documents claim, checked before memory is taken for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from virtualzarr.errors import UnsupportedError, suggest


class Settings:
    """Settings of the whole process, which can be changed for a while."""

    _noun: ClassVar = "setting"

    def __setattr__(self, name: str, value: Any) -> None:
        # A misspelt setting would leave the real one as it is: nobody would notice.
        self._check_names([name])
        self._check_value(name, value)
        super().__setattr__(name, value)

    def _check_value(self, name: str, value: Any) -> None:
        """Raise a `ValueError` for what no setting of that name can be."""

    def _check_names(self, names: Iterable[str]) -> None:
        settings = list(type(self).__annotations__)
        for name in names:
            if name not in settings:
                raise AttributeError(
                    f"there is no {self._noun} {name!r}; {suggest(name, settings)}"
                )

    def set(self, **settings: Any) -> AbstractContextManager[Self]:
        """Change settings for all threads, until the end of a with statement if it is in one.

        Raises
        ------
        AttributeError
            There is no such setting; none is changed.
        ValueError
            It cannot have that value; none is changed.

        Examples
        --------
        >>> from virtualzarr import config
        >>> with config.set(threads=1), config.limits.set(depth=3):
        ...     config.threads, config.limits.depth
        (1, 3)
        """
        self._check_names(settings)
        for name, value in settings.items():
            self._check_value(name, value)
        before = {name: getattr(self, name) for name in settings}
        for name, value in settings.items():
            setattr(self, name, value)
        return self._restore(before)

    @contextmanager
    def _restore(self, settings: Mapping[str, Any]) -> Iterator[Self]:
        try:
            yield self
        finally:
            for name, value in settings.items():
                setattr(self, name, value)


@dataclass
class Limits(Settings):
    """The most of each thing that one file or document may claim.

    A few bytes can claim more than any machine holds. The defaults lie far above what archives
    need; they are settings of `virtualzarr.config.limits`.

    Attributes
    ----------
    references : int
        Cells of the grids of one reference file, or one Icechunk array, and those of an array of
        the native form or a dataset that are loaded at once: each takes about 20 bytes.
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
    derived_cells : int
        Cells of the grid of an array that is made of others without a copy: by taking scattered
        indices, by cutting chunks, or by joining arrays whose chunks are cut differently. And cells
        of all datasets of one HDF5 file that are lengthened to their unlimited dimensions.
    sparse_cells : int
        Cells of the grid of an HDF5 dataset of which fewer than one in 64 is stored.
    repeated_links : int
        Links met in one scan that lead to groups of HDF5 files which have been listed already.
    chunk_queries : int
        Chunks of one array that are looked for one by one, at a server that does not list them.
    document_bytes : int
        Bytes of a metadata document that is compressed in a zip file, or comes from a server, or of
        a small reference file that is compressed.
    unannounced_bytes : int
        Bytes of an answer over HTTP whose length the server does not tell before.

    Examples
    --------
    >>> import virtualzarr
    >>> virtualzarr.config.limits.virtual_mappings
    1000000
    """

    _noun = "limit"

    references: int = 1 << 28
    generated: int = 1 << 24
    depth: int = 128
    fields: int = 50_000
    chunks_read: int = 1 << 24
    virtual_mappings: int = 1_000_000
    virtual_sources: int = 1_000_000
    element_bytes: int = 1 << 26
    attribute_elements: int = 1 << 22
    derived_cells: int = 10_000_000
    sparse_cells: int = 1 << 22
    repeated_links: int = 10_000
    chunk_queries: int = 10_000
    document_bytes: int = 1 << 28
    unannounced_bytes: int = 1 << 30

    def check(self, limit: str, count: int, items: str, variable: str | None = None) -> None:
        """Refuse a count above a limit.

        Parameters
        ----------
        limit : str
            Name of the limit.
        count : int
        items : str
            What is counted, in the plural.
        variable : str, optional
            The array whose items they are.

        Raises
        ------
        UnsupportedError
            If there are more; the message names the setting.
        """
        maximum = getattr(self, limit)
        if count > maximum:
            raise UnsupportedError(
                f"{count} {items} are more than virtualzarr.config.limits.{limit} allows, "
                f"{maximum}",
                variable=variable,
            )
