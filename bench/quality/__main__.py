"""`python bench/quality`: see cli.py."""

import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(BENCH)
sys.path.insert(1, str(BENCH.parent / "client" / "python"))

from make_stubs import use_checkout  # noqa: E402

use_checkout()

from quality.cli import main  # noqa: E402

sys.exit(main())
