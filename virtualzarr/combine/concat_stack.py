"""`concat` and `stack`: arrays or groups joined along an axis they have, or along a new one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, Unpack

from virtualzarr.array import Array
from virtualzarr.combine.arrays import concat_arrays, harmonize_inputs, resolve_axis, stack_arrays
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import ConcatJoin, StackJoin, coordinate_names, join_groups
from virtualzarr.combine.options import JoinOptions, ParsedOptions
from virtualzarr.combine.versions import join_versions
from virtualzarr.errors import name_type, suggest
from virtualzarr.hierarchy.group import Group
from virtualzarr.hierarchy.inventory import iter_arrays
from virtualzarr.keywords import strict_keywords

Node = TypeVar("Node", Array, Group)


@strict_keywords(JoinOptions)
def concat(
    items: Sequence[Node],
    axis: int | None = None,
    *,
    dim: str | None = None,
    **options: Unpack[JoinOptions],
) -> Node:
    """Join arrays or groups along an axis they have. Nothing is copied.

    Parameters
    ----------
    items : sequence of Array, or sequence of Group
        Arrays whose chunks are references, or lie in a Zarr store on disk, in memory, or remote.
        They may be cut and encoded in any ways: other chunk shapes, codecs, byte orders, orders of
        axes, shards. Along the axis, lengths may differ.
    axis : int, optional
        The axis. For arrays the default is 0; in groups, it is that of every array that has it.
    dim : str, optional
        The name of the dimension, instead of an axis. Arrays in groups that do not have it must be
        equal in all inputs, in value, and are kept as they are.
    harmonize : bool, or any of {"packing", "time", "fill", "unmask"}, optional
        Which differences in meaning are resolved, without copying, by decoding each input in its
        own way, instead of being errors. "packing": numbers are unpacked (``scale_factor``,
        ``add_offset``, ``_Unsigned``), masked ones (``_FillValue``, ``missing_value``) become NaN.
        "time": times are counted in one unit from one date. "fill": missing chunks read as their
        own input's fill value. What results is what xarray decodes from each input. Only if it is
        named, "unmask": where the fill value of Zarr v2 arrays is 0, zarr-python's default, which
        readers mask, zeros are numbers, so that integers stay integers.
    combine_attrs : {"drop_conflicts", "override", "no_conflicts", "identical", "drop"}, optional
        Of other attributes with several values, none is kept; all are the first input's; different
        values are an error; so are attributes that only some have; none is kept of any, but for
        those that give numbers their meaning.
    dtype : dtype-like, optional
        Of arrays: what all values are cast to, whatever is lost. By default, one that has all
        values of all inputs: float64 for int32 and float32, the longest text, the finest time.
    compat : {"equals", "override", "minimal"}, optional
        Of groups: variables that are not joined, and differ, are an error; are the first input's,
        without being read; are left out.
    missing : {"raise", "fill", "drop"}, optional
        Of groups: variables that are not in every input are an error; have missing values there,
        which is what their ``_FillValue`` says, or NaN; are left out.

    Returns
    -------
    Array or Group
        Its codecs are those of most chunks; other chunks have decoders of their own. Where chunks
        are cut differently along other axes, each chunk of the result is a part of one of every
        input; a chunk that serves several is still fetched and decoded once per request.

    Raises
    ------
    MismatchError
        The inputs differ in what must be equal, and the message says which input, in what, and both
        values: data types without a common one, dimension names, lengths along other axes,
        attributes that give numbers their meaning (`MEANING_ATTRIBUTES` in
        `virtualzarr.combine.attributes`; with them, also data types), and the fill value, where
        any chunk is missing.
        In groups also: variables that are not everywhere, and coordinates along the dimension that
        overlap, repeat, or are not in order.
    UnsupportedError
        References cannot point to the chunks of an array, such as those compressed in a zip file;
        or chunks are cut so differently that more than ten million parts would be made.
    ValueError
        There is nothing to join, or no such axis.

    Examples
    --------
    >>> import numpy as np
    >>> from grids import RegularGrid
    >>> from virtualzarr import Manifest
    >>> from virtualzarr.codecs import Pipeline, make
    >>> from virtualzarr.metadata import ArrayMetadata
    >>> def one_chunk(values):
    ...     grid, pipeline = RegularGrid(values.shape, values.shape), Pipeline(["bytes"])
    ...     meta = ArrayMetadata(values.shape, values.dtype, grid, pipeline)
    ...     return Array.from_manifest(meta, Manifest.inline(values.tobytes(), values.ndim))
    >>> joined = concat([one_chunk(np.arange(3, dtype="u1")), one_chunk(np.arange(2, dtype="u1"))])
    >>> joined.chunks, joined[1:]
    (((3, 2),), array([1, 2, 0, 1], dtype=uint8))
    """
    report = ErrorReport(InputLabels(_check_items(items, axis)))
    joined: Node = concat_items(items, axis, dim, report, ParsedOptions.parse(**options))
    return joined


@strict_keywords(JoinOptions)
def stack(
    items: Sequence[Node], axis: int = 0, *, dim: str | None = None, **options: Unpack[JoinOptions]
) -> Node:
    """Join arrays or groups along a new axis. Nothing is copied.

    Parameters
    ----------
    items : sequence of Array, or sequence of Group
        Virtual arrays of one shape.
    axis : int
        Where the new axis stands in the result.
    dim : str, optional
        The new dimension's name; needed for groups.
    **options
        As in `concat`.

    Returns
    -------
    Array or Group
        In groups, a coordinate of its own dimension stays as it is and must be equal in all inputs.
        Scalars, and variables that attributes such as ``coordinates`` and ``bounds`` refer to,
        stay as they are if they are equal in all inputs. A scalar called `dim` becomes the
        coordinate of the new dimension. All other variables are stacked.

    Raises
    ------
    MismatchError, UnsupportedError, ValueError
        As `concat`; and where a codec cannot be used with one axis more.

    Examples
    --------
    >>> a, b = scan("day1.tif"), scan("day2.tif")  # doctest: +SKIP
    >>> stack([a, b], dim="time")  # doctest: +SKIP
    <Group: 1 member>
    """
    report = ErrorReport(InputLabels(_check_items(items, axis)))
    joined: Node = stack_items(items, axis, dim, report, ParsedOptions.parse(**options))
    return joined


def concat_rows(groups: Sequence[Group], dim: str, **options: Unpack[JoinOptions]) -> Group:
    """Join groups as `concat` does, without asking in which order their coordinates are.

    For rows whose place among others is decided elsewhere.
    """
    report, parsed = ErrorReport(InputLabels(groups)), ParsedOptions.parse(**options)
    group = join_groups(groups, ConcatJoin(dim, None, parsed, is_ordered=False), report, parsed)
    report.raise_problems(f"add rows along {dim}", parsed)
    return group


def concat_items(
    items: Sequence[Any],
    axis: int | None,
    dim: str | None,
    report: ErrorReport,
    options: ParsedOptions,
) -> Any:
    """Do what `concat` does, with names for the inputs."""
    joined: Array | Group | None
    join_versions(items)
    if isinstance(items[0], Array):
        axis_number, path = resolve_axis(items, axis, dim), items[0].path
        arrays = harmonize_inputs(items, report, path, options)
        joined = concat_arrays(arrays, axis_number, report, path, options)
    else:
        _check_no_dtype(options)
        if (axis is None) == (dim is None):
            raise ValueError("give dim, the name of the dimension along which groups are joined")
        # Checked here: deep in the join, a dimension that nobody has would seem to leave every
        # variable as it is, which is silent nonsense for a misspelt name.
        if dim is not None and not any(has_dimension(group, dim) for group in items):
            raise ValueError(
                f"{explain_no_dimension(items, dim)} (stack() joins groups along a new one)"
            )
        joined = join_groups(items, ConcatJoin(dim, axis, options), report, options)
    report.raise_problems(f"concatenate along {dim or f'axis {axis or 0}'}", options)
    return joined


def stack_items(
    items: Sequence[Any], axis: int, dim: str | None, report: ErrorReport, options: ParsedOptions
) -> Any:
    """Do what `stack` does, with names for the inputs."""
    joined: Array | Group | None
    join_versions(items)
    if isinstance(items[0], Array):
        ndim, path = items[0].ndim, items[0].path
        if not -ndim - 1 <= axis <= ndim:
            raise ValueError(f"arrays of {ndim} axes cannot have a new axis {axis}")
        arrays = harmonize_inputs(items, report, path, options)
        joined = stack_arrays(arrays, axis % (ndim + 1), dim, report, path, options)
    else:
        _check_no_dtype(options)
        if dim is None:
            raise ValueError("give dim, a name for the new dimension")
        # Groups may be empty: the first that has members says which of them are coordinates.
        template = next((group for group in items if len(group)), items[0])
        join = StackJoin(axis, dim, coordinate_names(template), options)
        joined = join_groups(items, join, report, options)
    report.raise_problems(f"stack along a new axis {axis}", options)
    return joined


def _check_no_dtype(options: ParsedOptions) -> None:
    if options.dtype is not None:
        raise ValueError("dtype is for arrays: the variables of groups have one each")


def has_dimension(group: Group, dim: str) -> bool:
    """Tell whether any array in a group, at any depth, has a dimension."""
    return any(dim in array.dims for _, array in iter_arrays(group))


def explain_no_dimension(nodes: Iterable[Array | Group], dim: str) -> str:
    """Return the message that no array has a dimension, with the name that is likely meant."""
    arrays = (array for node in nodes for _, array in iter_arrays(node))
    names = dict.fromkeys(name for array in arrays for name in array.dims if name)
    return f"no array has a dimension {dim!r}; {suggest(dim, names)}"


def _check_items(items: Sequence[Any], axis: Any) -> Sequence[Any]:
    """Return the items, if they are all arrays or all groups; refuse a name as axis."""
    # In xarray, the second argument of concat is the name of a dimension.
    if isinstance(axis, str):
        raise TypeError(f"axis is a number; the name of a dimension is given as dim={axis!r}")
    if not len(items):
        raise ValueError("there is nothing to join")
    # Subclasses of Array count as arrays; a group and an array never join.
    kinds = {Array if isinstance(item, Array) else type(item) for item in items}
    if kinds != {Array} and kinds != {Group}:
        names = sorted({name_type(item) for item in items})
        advice = (
            "" if kinds == {Array, Group} else "; open() returns one for what others have opened"
        )
        raise TypeError(f"give arrays only or groups only, not {' and '.join(names)}{advice}")
    return items
