"""What models of arrays and of groups have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

from virtualzarr.metadata.documents import same_json
from virtualzarr.models.compare import documents_differ

if TYPE_CHECKING:
    from virtualzarr.array import Array
    from virtualzarr.group import Group


class NodeSpec(ABC):
    """The structure of an array or of a group with its members, without data and without a store.

    Two models are equal where their JSON forms are. Source: ZEP 6, Zarr object models.
    """

    zarr_format: ClassVar[int]
    node_type: ClassVar[str]

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the model as the JSON object of ZEP 6."""

    def differences(
        self,
        other: Any,
        *,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
    ) -> list[str]:
        """Return in what another hierarchy differs from this one, a line for each member.

        Members of a group that one of the two does not know (``members=None``) are not compared.

        Parameters
        ----------
        other : NodeSpec, Array, Group, or what `virtualzarr.open` opens
        include, exclude : collection of str, optional
            Names of members of nodes, such as ``"attributes"`` or ``"shape"``: only these, or all
            but these, are compared.

        Examples
        --------
        >>> from virtualzarr.models import v3
        >>> a = v3.ArraySpec.new(shape=(4, 6), dtype="i4", attributes={"units": "K"})
        >>> b = v3.ArraySpec.new(shape=(5, 6), dtype="i4", chunks=(4, 6), attributes={})
        >>> for line in a.differences(b):
        ...     print(line)
        /: attributes: units: 'K' here, missing there
        /: shape: [4, 6] here, [5, 6] there
        """
        if not isinstance(other, NodeSpec):
            from virtualzarr.models.stored import read

            other = read(other)
        return list(documents_differ(self.to_json(), other.to_json(), include, exclude))

    def like(
        self,
        other: Any,
        *,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
    ) -> bool:
        """Tell whether another hierarchy has the same structure; see `differences`."""
        return not self.differences(other, include=include, exclude=exclude)

    def to_format(self, zarr_format: int, *, new_keys: bool = False) -> Any:
        """Return the model of the same hierarchy in another Zarr format, with plain attributes.

        Chunks stay where they are: their keys are the same.

        Parameters
        ----------
        zarr_format : {2, 3}
        new_keys : bool
            Whether chunks get the keys that are usual in that format, instead.

        Raises
        ------
        UnsupportedError
            Something has no exact form there; the message names the first such member.

        Examples
        --------
        >>> from virtualzarr.models import v2
        >>> old = v2.ArraySpec.new(shape=(4, 6), dtype=">i4", attributes={}, dimension_names="xy")
        >>> new = old.to_format(3)
        >>> new.data_type, new.dimension_names, new.chunk_key_encoding["name"]
        ('int32', ('x', 'y'), 'v2')
        >>> new.to_format(2) == old
        True
        """
        from virtualzarr.models.convert import convert

        return convert(self, zarr_format, new_keys=new_keys)

    def create(
        self,
        store: Any,
        path: str = "",
        *,
        overwrite: bool = False,
        consolidate: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> Array | Group:
        """Make the hierarchy in a store, groups before what is in them.

        Parameters
        ----------
        store : path, URL, mutable mapping or store
        path : str
            Where in the store; groups above it that are not there are made.
        overwrite : bool
            Whether a node that is there already is deleted, with everything in it.
        consolidate : bool
            Whether the metadata of a group are consolidated at the end.

        Raises
        ------
        NodeExistsError
            There is a node already.

        Examples
        --------
        >>> from virtualzarr.models import v3
        >>> array = v3.ArraySpec.new(shape=(4, 6), dtype="i4", attributes={})
        >>> model = v3.GroupSpec(attributes={}, members={"x": array})
        >>> model.create({})
        <Group: 1 member>
        """
        from virtualzarr.models.stored import create

        return create(
            self,
            store,
            path,
            overwrite=overwrite,
            consolidate=consolidate,
            storage_options=storage_options,
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, NodeSpec)
        return same_json(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))
