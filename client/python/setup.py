"""Makes the stubs of the protos while the package is built: what is generated is part of the package, not of the sources."""

import pathlib
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from make_stubs import copy_protos, make_stubs  # noqa: E402


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            raise SystemExit("ripplekv has generated parts and cannot be installed with --editable; install it again "
                             "after a change")  # fmt: skip
        make_stubs(pathlib.Path(self.build_lib))


class SdistWithProtos(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        copy_protos(pathlib.Path(base_dir) / "proto")


setup(cmdclass={"build_py": BuildWithStubs, "sdist": SdistWithProtos})
