"""File channels: distribution of files to a known set of consumers."""

from .channel import ConsumerStats, FileChannel, FileStats
from .publishing import Progress, Report
from .reading import gunzip, iter_lines, unzstd
from .received import File

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
