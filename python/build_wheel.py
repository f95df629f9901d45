#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the wheel: the package and libkt.so in one file. Needs nothing but Python.

    python3 python/build_wheel.py --library build/release/lib/libkt.so --out DIR
    python3 python/build_wheel.py --as-kt-kernel --out DIR    a package `kt_kernel` that is ours

Also the build backend of pyproject.toml: `pip wheel python/` ($KT_LIBRARY names the library)."""

import argparse
import base64
import hashlib
import os
import re
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
DATE = (1980, 1, 1, 0, 0, 0)  # the same bytes from the same files
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: mixture-of-experts inference, tuned by measurement
License: Apache-2.0
Requires-Python: >=3.8
"""
WHEEL = """Wheel-Version: 1.0
Generator: kt
Root-Is-Purelib: false
Tag: {tag}
"""
PLACE = '''"""kt in the place of kt-kernel: `kt_kernel` for programs that import it by that name."""
from kt.kernel import *
from kt import __version__

__cpu_variant__ = "kt"
'''


def version():
    with open(os.path.join(HERE, "..", "include", "kt", "version.h"), encoding="utf-8") as f:
        return re.search(r'KT_VERSION "([^"]+)"', f.read()).group(1)


def library_files(library):
    folder = os.path.join(HERE, "kt")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as f:
                yield "kt/" + name, f.read()
    with open(library, "rb") as f:
        yield "kt/libkt.so", f.read()


def make(library, out):
    """The wheel of the package."""
    return write(out, "kt", "py3-none-linux_x86_64", library_files(library))


def make_place(out):
    """The wheel that takes kt-kernel's place. It must not be installed beside kt-kernel."""
    files = [("kt_kernel/__init__.py", PLACE.encode())]
    return write(out, "kt_kernel_place", "py3-none-any", files, f"Requires-Dist: kt =={version()}\n")


def write(out, package, tag, files, needs=""):
    name = f"{package}-{version()}-{tag}.whl"
    info = f"{package}-{version()}.dist-info/"
    metadata = METADATA.format(name=package.replace("_", "-"), version=version()) + needs
    files = [*files, (info + "METADATA", metadata.encode()),
             (info + "WHEEL", WHEEL.format(tag=tag).encode())]
    record = []
    with zipfile.ZipFile(os.path.join(out, name), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        for path, data in files:
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            z.writestr(zipfile.ZipInfo(path, DATE), data, zipfile.ZIP_DEFLATED)
        path = info + "RECORD"
        z.writestr(zipfile.ZipInfo(path, DATE), "\n".join(record + [path + ",,", ""]))
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    built = os.path.join(HERE, "..", "build", "release", "lib", "libkt.so")
    return make(os.environ.get("KT_LIBRARY", built), wheel_directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--library", help="libkt.so of a release build")
    what.add_argument("--as-kt-kernel", action="store_true", help="a package kt_kernel that is ours")
    parser.add_argument("--out", required=True, help="folder for the wheel")
    a = parser.parse_args()
    if a.library and not os.path.isfile(a.library):
        sys.exit(f"{a.library}: no such library (ninja -C build/release kt_shared)")
    os.makedirs(a.out, exist_ok=True)
    print(os.path.join(a.out, make(a.library, a.out) if a.library else make_place(a.out)))


if __name__ == "__main__":
    main()
