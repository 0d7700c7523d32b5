"""Publishing: hierarchies written so that other people's tools open them."""

from virtualzarr.publish.references import publish
from virtualzarr.publish.report import PublishReport

__all__ = ["PublishReport", "publish"]
