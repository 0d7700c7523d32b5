"""Publishing: hierarchies written so that other people's tools open them."""

from virtualzarr.publish.preview import Preview
from virtualzarr.publish.references import preview, publish
from virtualzarr.publish.report import PublishReport

__all__ = ["Preview", "PublishReport", "preview", "publish"]
