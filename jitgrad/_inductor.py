"""torch._inductor: names that public code touches. Settings of it (`config`) are not there."""

from jitgrad.compiling import cudagraph_mark_step_begin as cudagraph_mark_step_begin
from jitgrad.missing import missing

__getattr__ = missing(__name__)
