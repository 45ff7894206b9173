"""Show records on the console, as pages and as files.

A report maps file names to contents, or to functions that create them. The functions ``*_reports``
of :mod:`experiment.report.files.write` and :mod:`experiment.report.pages` return the reports of a
command; :func:`experiment.report.files.write.write_listed` writes them. If a file fails, the others
are still written.
"""

from collections.abc import Callable, Mapping

Content = str | bytes
Reports = Mapping[str, Content | Callable[[], Content]]
