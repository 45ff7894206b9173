"""Puts configs/ into the wheel, as a part of the package; everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CONFIGS = Path("configs")


class BuildWithConfigs(build_py):
    """An installation from a clone in place reads configs/ itself and needs no copy."""

    def run(self) -> None:
        """Copy the packages, then the configs beside them."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "experiment", CONFIGS.name)
        self.mkpath(str(target))
        for path in sorted(CONFIGS.glob("*.toml")):
            self.copy_file(str(path), str(target / path.name))


setup(cmdclass={"build_py": BuildWithConfigs})
