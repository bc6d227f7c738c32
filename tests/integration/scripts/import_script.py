"""Runs the file of its argument up to where a script's main would begin."""

import os
import runpy
import sys

sys.path[:] = [place for place in sys.path if not place.rstrip("/").endswith(("tests", "tests/integration"))]
sys.path.insert(0, os.path.dirname(sys.argv[1]))
runpy.run_path(sys.argv[1], run_name="imported")
