"""Executes cells in a real kernel of this Python, as Jupyter does, and prints the notebook as JSON.

    python execute_notebook.py FOLDER < cells.json

In a process of its own: nbclient leaves its sockets to the end of the process.
"""

import json
import sys

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
manager = AsyncKernelManager()
command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
manager._kernel_spec = KernelSpec(argv=command, display_name="here", language="python")
place = {"metadata": {"path": sys.argv[1]}}
NotebookClient(notebook, km=manager, timeout=240, resources=place, allow_errors=True).execute()
print(nbformat.writes(notebook))
