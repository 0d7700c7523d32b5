"""`merge`: groups with different variables as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from virtualzarr.array import Array
from virtualzarr.combine.attributes import combine_attributes
from virtualzarr.combine.error_report import ErrorReport, InputLabels
from virtualzarr.combine.groups import merge_equal, split_kinds
from virtualzarr.combine.missing import dimension_lengths
from virtualzarr.combine.options import JoinOptions, ParsedOptions
from virtualzarr.combine.versions import join_versions
from virtualzarr.hierarchy.group import Group
from virtualzarr.keywords import strict_keywords


@strict_keywords(JoinOptions)
def merge(groups: Sequence[Group], **options: Unpack[JoinOptions]) -> Group:
    """Put the variables of several groups into one. Nothing is copied.

    Parameters
    ----------
    groups : sequence of Group
        What is in several of them must be equal there, groups within them are merged, too.
    **options
        `compat` and `combine_attrs`, as in `virtualzarr.concat`.

    Raises
    ------
    MismatchError
        Variables of one name differ, or a dimension has several lengths; the message says where.

    Examples
    --------
    >>> list(merge([Group({}, {"a": Group()}), Group({}, {"b": Group()})]))
    ['a', 'b']
    """
    groups = list(groups)
    if not groups:
        raise ValueError("there is nothing to merge")
    report = ErrorReport(InputLabels(groups))
    parsed = ParsedOptions.parse(**options)
    join_versions(groups)
    merged = merge_groups(groups, report, parsed)
    report.raise_problems("merge", parsed)
    return merged


def merge_groups(
    groups: Sequence[Group], report: ErrorReport, options: ParsedOptions, path: str = ""
) -> Group:
    """Do what `merge` does, noting what does not fit."""
    members: dict[str, Array | Group] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        member_path = f"{path}/{name}" if path else name
        owners = [index for index, group in enumerate(groups) if name in group]
        nodes = [groups[index][name] for index in owners]
        # Only some groups have the variable; errors name inputs by their number among all.
        member_report = report.for_inputs(owners)
        arrays, inner = split_kinds(nodes, member_report, member_path)
        if inner:
            members[name] = merge_groups(inner, member_report, options, member_path)
        elif arrays:
            array = merge_equal(arrays, member_report, member_path, options)
            if array is not None:
                members[name] = array
    skipped = {where: why for group in groups for where, why in group.skipped.items()}
    attributes = combine_attributes([group.attrs for group in groups], options.combine_attrs)
    merged = Group(attributes, members, groups[0].path, skipped)
    if not report.problems:
        # Variables that are each right may still disagree on a dimension, which no group would
        # accept when it is opened by xarray.
        dimension_lengths(merged)
    return merged
