"""Groups with different variables as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from virtualzarr.array import Array
from virtualzarr.combine.attributes import combined_attributes
from virtualzarr.combine.error_report import Labels, Problems
from virtualzarr.combine.groups import same_everywhere
from virtualzarr.combine.missing import lengths_of
from virtualzarr.combine.options import JoinOptions, Options
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
    problems = Problems(Labels(groups))
    asked = Options.of(**options)
    merged = merge_labelled(groups, problems, asked)
    problems.check("merge", asked)
    return merged


def merge_labelled(
    groups: Sequence[Group], problems: Problems, options: Options, path: str = ""
) -> Group:
    """Do what `merge` does, noting what does not fit."""
    members: dict[str, Array | Group] = {}
    for name in dict.fromkeys(name for group in groups for name in group):
        place = f"{path}/{name}" if path else name
        owners = [index for index, group in enumerate(groups) if name in group]
        nodes = [groups[index][name] for index in owners]
        inner = [node for node in nodes if isinstance(node, Group)]
        arrays = [node for node in nodes if isinstance(node, Array)]
        mine = problems.of(owners)
        if inner and arrays:
            odd = next(i for i, node in enumerate(nodes) if type(node) is not type(nodes[0]))
            mine.differ(place, odd, 0, "kind", type(nodes[odd]).__name__, type(nodes[0]).__name__)
        elif inner:
            members[name] = merge_labelled(inner, mine, options, place)
        elif (array := same_everywhere(arrays, mine, place, options)) is not None:
            members[name] = array
    skipped = {where: why for group in groups for where, why in group.skipped.items()}
    attributes = combined_attributes([group.attrs for group in groups], options.combine_attrs)
    merged = Group(attributes, members, groups[0].path, skipped)
    if not problems.found:
        lengths_of(merged)
    return merged
