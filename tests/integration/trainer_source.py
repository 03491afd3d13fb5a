"""Runs a trainer's own code where the trainer is not installed: its sources are read from a folder, and packages that are not here are
replaced by modules that have every name. Only for tests of one trainer in a process of its own."""
import importlib.abc, importlib.machinery, os, sys, types

from python_with import run_with


def source_of(name):
    """The folder of the trainer's sources, from SEER_<NAME>_SOURCE, on a Python with torch; ends the test as skipped without one of them."""
    variable = f"SEER_{name.upper()}_SOURCE"
    folder = os.environ.get(variable, "")
    if not os.path.isdir(folder):
        print(f"skipped: {variable} is no folder with the sources of {name}")
        sys.exit(77)
    if not run_with("torch.distributed"):
        print("skipped: no Python here has torch (Debian, Ubuntu: python3-torch)")
        sys.exit(77)
    sys.path.insert(0, folder)
    return folder


class AnyNames(types.ModuleType):
    """A module, or a package, in which every name is a class that takes any arguments."""

    def __init__(self, name, path=()):
        super().__init__(name)
        self.__path__ = list(path)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {"__init__": lambda self, *_, **__: None}))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec):
        return AnyNames(spec.name)

    def exec_module(self, module):
        pass


def replace_packages(*packages):
    sys.meta_path.insert(0, _Finder(packages))


def replace_module(name, path=(), **names):
    """One module. With a `path` it is a package whose own modules are read from there, without its __init__."""
    module = sys.modules[name] = AnyNames(name, path)
    for key, value in names.items():
        setattr(module, key, value)
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)
    return module


def as_newer_torch():
    """What trainers use of torch 2, for torch 1.13 and gloo."""
    import torch
    from torch.distributed import distributed_c10d
    if not hasattr(distributed_c10d, "_world"):
        distributed_c10d._world = types.SimpleNamespace(pg_group_ranks=distributed_c10d._pg_group_ranks)
        make_group, broadcast = distributed_c10d._new_process_group_helper, torch.distributed.broadcast
        distributed_c10d._new_process_group_helper = lambda *args, **named: (make_group(*args, **named), None)
        torch.distributed.broadcast = lambda tensor, *args, **named: broadcast(tensor.view(torch.uint8), *args, **named)


def named_tensors(tensors):
    """Of torch, from what read_tensors() of weights.py gives."""
    import torch
    from weights import TORCH_DTYPES
    return [(name, torch.frombuffer(bytearray(data), dtype=torch.uint8).view(getattr(torch, TORCH_DTYPES[dtype])).reshape(shape))
            for name, dtype, shape, data in tensors]
