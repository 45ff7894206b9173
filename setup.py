"""Puts configs/ into the wheel, as a part of the package; everything else is in pyproject.toml.

Its description is the README without pictures and links into the repository, which lead nowhere on
a package index.
"""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CONFIGS = Path("configs")
README = re.sub(r"^\[!\[.*\n", "", Path("README.md").read_text(encoding="utf-8"), flags=re.M)
README = re.sub(r"!?\[([^\]]*)\]\((?!https?:|#)[^)]*\)", r"\1", README)


class BuildWithConfigs(build_py):
    """An installation from a clone in place reads configs/ itself and needs no copy."""

    def run(self) -> None:
        """Copy the packages, then the configs beside them."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "experiment", CONFIGS.name)
        self.mkpath(str(target))
        for path in sorted(CONFIGS.iterdir()):
            self.copy_file(str(path), str(target / path.name))


setup(
    cmdclass={"build_py": BuildWithConfigs},
    long_description=README,
    long_description_content_type="text/markdown",
)
