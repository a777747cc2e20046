"""LMDeploy's module names for servers and clients. The package is also callable: `seesay.serve(...)` works as a
function even if one of these modules was imported before."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from seesay.serving.launch import serve as _serve


class _CallableModule(ModuleType):
    __call__ = staticmethod(_serve)


sys.modules[__name__].__class__ = _CallableModule
__signature__ = inspect.signature(_serve)
