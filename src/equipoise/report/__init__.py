"""The report: a self-contained HTML page, on disk (`write`) or live on localhost (`watch`)."""

from equipoise.report.page import write
from equipoise.report.runs import ReportError, TooManyRuns
from equipoise.report.watch import watch

__all__ = ["ReportError", "TooManyRuns", "watch", "write"]
