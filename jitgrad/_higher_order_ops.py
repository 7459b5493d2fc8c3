"""torch._higher_order_ops: control flow by the paths from which public code imports it."""

from jitgrad.associative import associative_scan as associative_scan
from jitgrad.control_flow import cond as cond
from jitgrad.control_flow import scan as scan
from jitgrad.control_flow import while_loop as while_loop
from jitgrad.missing import missing, names_module

for _function in (associative_scan, cond, scan, while_loop):
    names_module(
        f"{__name__}.{_function.__name__}",
        {_function.__name__: _function},
        f"torch._higher_order_ops.{_function.__name__}.",
    )

__getattr__ = missing(__name__)
