"""Reads the record and shows it.

A report is the name of each file of it and that file's content, or what makes it: ``*_reports`` of
:mod:`experiment.report.files.write` and :mod:`experiment.report.pages` say what a command writes,
:func:`experiment.report.files.write.write_listed` writes it. What is made when it is written takes
no other file with it where that fails.
"""

from collections.abc import Callable, Mapping

Content = str | bytes
Reports = Mapping[str, Content | Callable[[], Content]]
