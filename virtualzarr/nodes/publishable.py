"""The methods `publish` and `preview` of arrays and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from virtualzarr.stores.pins import without_read_versions

if TYPE_CHECKING:
    from virtualzarr.references.preview import Preview
    from virtualzarr.references.report import PublishReport


class Publishable:
    """What references can be written to: base of `Array` and `Group`."""

    def publish(self: Any, path: Any, *, copy: bool = False, **options: Any) -> PublishReport:
        """Write references that other tools open; see `virtualzarr.publish`."""
        from virtualzarr.references.publish import publish

        return publish(self, path, copy=copy, **options)

    def preview(self: Any, path: Any, **options: Any) -> Preview:
        """Count what `publish` would do, without writing; see `virtualzarr.preview`."""
        from virtualzarr.references.publish import preview

        return preview(self, path, **options)

    def __dask_tokenize__(self) -> Any:
        # Names of tasks do not depend on which versions of files have been read by now.
        from dask.base import normalize_token

        with without_read_versions():
            return normalize_token(_Pickled(self))


class _Pickled:
    """What dask tells from others by its pickle."""

    def __init__(self, value: Any) -> None:
        self.value = value
