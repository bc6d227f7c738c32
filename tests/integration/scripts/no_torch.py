"""A script that has nothing to do with torch."""

import sys

print("hello", sys.argv[1:], sorted(name for name in sys.modules if "nanscope" in name or name == "probe"))
