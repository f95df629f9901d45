#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the wheel: the package and libkt.so in one file. Needs nothing but Python.

    python3 python/build_wheel.py --library build/release/lib/libkt.so --out DIR

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
Name: kt
Version: {version}
Summary: mixture-of-experts inference, tuned by measurement
License: Apache-2.0
Requires-Python: >=3.8
"""
WHEEL = """Wheel-Version: 1.0
Generator: kt
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""


def version():
    with open(os.path.join(HERE, "..", "include", "kt", "version.h"), encoding="utf-8") as f:
        return re.search(r'KT_VERSION "([^"]+)"', f.read()).group(1)


def contents(library):
    folder = os.path.join(HERE, "kt")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name), "rb") as f:
                yield "kt/" + name, f.read()
    with open(library, "rb") as f:
        yield "kt/libkt.so", f.read()
    info = f"kt-{version()}.dist-info/"
    yield info + "METADATA", METADATA.format(version=version()).encode()
    yield info + "WHEEL", WHEEL.encode()


def make(library, out):
    name = f"kt-{version()}-py3-none-linux_x86_64.whl"
    record = []
    with zipfile.ZipFile(os.path.join(out, name), "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        for path, data in contents(library):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(data)}")
            z.writestr(zipfile.ZipInfo(path, DATE), data, zipfile.ZIP_DEFLATED)
        path = f"kt-{version()}.dist-info/RECORD"
        z.writestr(zipfile.ZipInfo(path, DATE), "\n".join(record + [path + ",,", ""]))
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517."""
    built = os.path.join(HERE, "..", "build", "release", "lib", "libkt.so")
    return make(os.environ.get("KT_LIBRARY", built), wheel_directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libkt.so of a release build")
    parser.add_argument("--out", required=True, help="folder for the wheel")
    a = parser.parse_args()
    if not os.path.isfile(a.library):
        sys.exit(f"{a.library}: no such library (ninja -C build/release kt_shared)")
    os.makedirs(a.out, exist_ok=True)
    print(os.path.join(a.out, make(a.library, a.out)))


if __name__ == "__main__":
    main()
