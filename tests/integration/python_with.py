"""Finds a Python that has a module: packages of the system are there for its own Python only. Importing this needs no module."""
import os, subprocess, sys


def python_with(module):
    """None: no Python here has it."""
    has = lambda python: subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode == 0
    return next((python for python in (sys.executable, "/usr/bin/python3") if has(python)), None)


def run_with(module):
    """Runs this program again with a Python that has the module, where this one has not. False: no Python here has it."""
    python = python_with(module)
    if python is not None and python != sys.executable:
        os.execv(python, [python, *sys.argv])
    return python is not None
