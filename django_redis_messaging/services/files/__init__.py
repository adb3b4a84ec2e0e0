"""File channels: distribution of files to a known set of consumers."""

from .channel import FileChannel
from .decompression import gunzip, unzstd
from .file import File
from .lines import iter_lines
from .values import ConsumerStats, FileStats, Progress, Report

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
