"""Builds the compiled loops where there is a compiler; everything else stands in pyproject.toml.

Without one, or where they do not compile, NumPy does the same work: see daydream/compiled/__init__.py. With
`DAYDREAM_COMPILED=0` in the environment they are left out, and the wheel is for any system.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

# One wheel serves every Python since 3.11, the first whose stable interface has buffers.
STABLE = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")

ENGINE = Extension(
    "daydream.compiled._engine",
    ["daydream/compiled/_engine.c"],
    depends=["daydream/compiled/_plan.h"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
    extra_compile_args=["/O2"]
    if sys.platform == "win32"
    else ["-O3", "-Wall", "-Wextra", "-ffp-contract=off"],
    py_limited_api=STABLE,
    optional=True,
)

setup(
    ext_modules=[] if os.environ.get("DAYDREAM_COMPILED") == "0" else [ENGINE],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
