"""A stand-in: no guided decoding. Any name is a class that does nothing."""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.2.1"


def _named(module):
    def get(name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": module})
        setattr(sys.modules[module], name, made)
        return made

    return get


__getattr__ = _named("xgrammar")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("xgrammar."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        module.__getattr__ = _named(module.__name__)


sys.meta_path.append(_Finder())
