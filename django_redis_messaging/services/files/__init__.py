"""File channels: distribution of files to a known set of consumers."""

from .channel import ConsumerStats, File, FileChannel, FileStats, Progress, Report
from .reading import gunzip, iter_lines, unzstd

__all__ = [
    "ConsumerStats",
    "File",
    "FileChannel",
    "FileStats",
    "Progress",
    "Report",
    "gunzip",
    "iter_lines",
    "unzstd",
]
