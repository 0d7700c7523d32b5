"""Text of a decision file, JSON or YAML: no aliases, no tags, no key twice."""

from __future__ import annotations

import json
from typing import Any

from virtualzarr.errors import import_optional


def parse_text(data: bytes, name: str) -> Any:
    """Return the document of a decision file, JSON if its name ends so. Raises `ValueError`."""
    if name.endswith(".json"):
        return json.loads(data, object_pairs_hook=_refuse_twice)
    yaml: Any = import_optional(
        "yaml",
        "decision files as YAML need PyYAML (pip install virtualzarr[decisions]); JSON does not",
    )

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: Any, index: Any) -> Any:
            # A file of a few bytes could stand for gigabytes.
            if self.check_event(yaml.AliasEvent):
                raise ValueError("aliases are not allowed")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            return _refuse_twice(
                (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
                for key, value in node.value
            )

    # As JSON, which drafts are written in, escapes characters beyond 16 bits as two.
    Loader.add_constructor(
        "tag:yaml.org,2002:str", lambda self, node: _join_surrogates(self.construct_scalar(node))
    )
    Loader.add_constructor("tag:yaml.org,2002:map", lambda self, node: self.construct_mapping(node))
    try:
        return yaml.load(data, Loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _join_surrogates(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _refuse_twice(pairs: Any) -> dict[Any, Any]:
    """Return a mapping; the same key twice is a mistake, of which the last would win."""
    mapping: dict[Any, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key!r} is there twice")
        mapping[key] = value
    return mapping
