#!/bin/sh
# Set-up from a bare Debian machine with a Python that pyproject.toml allows. Called by the Makefile:
#   sh scripts/setup.sh system           system packages that a virtual environment needs
#   sh scripts/setup.sh browser          chromium, for tests that drive a browser
#   sh scripts/setup.sh venv             .venv with the package and its tested dependencies
#   sh scripts/setup.sh tl4 REQUIREMENT  TransformerLens 4.x in .venv/tl4, beside the default line
#   sh scripts/setup.sh constraints      constraints.txt from what .venv holds
# Each step does nothing, quickly, when its work is done. PYTHON=... chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd -P)

say() { printf '%s\n' "setup: $*" >&2; }
stop() { say "$*"; exit 1; }

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
}

# A torch built for a GPU, seen by the interpreter given. (A CPU torch elsewhere is no reason to share packages.)
sees_gpu_torch() {
    "$1" -c 'import sys, torch; sys.exit(not (torch.version.cuda or torch.version.hip))' 2>/dev/null
}

choose_python() {
    candidates=${PYTHON:-python3.11 python3 python3.12 python3.13}
    if [ -z "${PYTHON:-}" ] && sees_gpu_torch python3; then
        candidates="python3 $candidates"
    fi
    for candidate in $candidates; do
        if is_supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    stop "no Python from 3.11 to 3.13 found; install one (Debian 12: apt-get install python3 python3-venv)," \
        "or name one: make venv PYTHON=/path/to/python3"
}

# Installs Debian packages as root or through a sudo that asks nothing; otherwise says what to install and fails.
install_debian() {
    if ! command -v apt-get >/dev/null; then
        say "this needs '$*', and there is no apt-get here: please install the like of it yourself"
        return 1
    elif [ "$(id -u)" = 0 ]; then
        as_root="env"
    elif sudo -n true 2>/dev/null; then
        as_root="sudo -n env"
    else
        say "this needs '$*', and I may not install it: please run  sudo apt-get install $*"
        return 1
    fi
    say "installing $*"
    $as_root apt-get update -qq </dev/null &&
        $as_root DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq -o DPkg::Lock::Timeout=120 --no-install-recommends "$@" </dev/null >&2
}

install_system() {
    if [ -x .venv/bin/pip ]; then
        return
    fi
    python=$(choose_python) || return 1
    # Debian ships Python without what `python3 -m venv` needs.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        install_debian "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    fi
}

install_browser() {
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then
            return
        fi
    done
    install_debian chromium fonts-dejavu-core  # a browser without fonts draws boxes
}

# What an installation depends on: a change of any of it, or a moved folder, means to install again.
fingerprint() {
    {
        printf '%s\n' "$root"
        cat "$@"
    } | cksum
}

make_venv() {
    rm -rf .venv
    install_system
    python=$(choose_python)
    if sees_gpu_torch "$python"; then
        say "making .venv around the GPU build of torch that $python has"
        "$python" -m venv --system-site-packages .venv
        # An interpreter inside another virtual environment does not pass its packages on.
        sees_gpu_torch .venv/bin/python && return
        rm -rf .venv
    fi
    say "making .venv with $python"
    "$python" -m venv .venv
}

install_venv() {
    stamp=.venv/installed
    wanted=$(fingerprint pyproject.toml constraints.txt scripts/setup.sh)
    if [ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
        return
    fi
    # Scripts inside a virtual environment name its folder, so one that was moved or half made is made anew.
    if ! grep -qsF "$root/.venv/" .venv/bin/pip || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        make_venv
    fi
    rm -f $stamp
    if sees_gpu_torch .venv/bin/python; then
        grep -v '^torch==' constraints.txt >.venv/constraints.txt
    else
        cp constraints.txt .venv/constraints.txt
        # By itself and first: then pip takes a CPU build wherever its settings offer one.
        say "installing $(grep '^torch==' constraints.txt)"
        pip_install "$(grep '^torch==' constraints.txt)"
    fi
    say "installing the package and its dependencies"
    pip_install --editable '.[dev]'
    printf '%s\n' "$wanted" >$stamp
}

pip_install() {
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-input \
        --constraint .venv/constraints.txt "$@" </dev/null
}

# Only the library itself: it has the same dependencies as the default line, which are there already.
install_tl4() {
    stamp=.venv/tl4/installed
    wanted="$1 $(fingerprint .venv/installed)"
    if [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    rm -rf .venv/tl4
    say "installing $1 beside the default line"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-input \
        --no-deps --target .venv/tl4 "$1" </dev/null
    printf '%s\n' "$wanted" >$stamp
}

# The versions in .venv, without local labels such as +cpu, are the tested set. Debian 12 has Python 3.11.2, and a
# release that refuses it (">=3.11.5" was seen) would make the set impossible to install there.
write_constraints() {
    .venv/bin/python - >.venv/constraints.new <<'END' || stop "constraints.txt is left as it was"
import importlib.metadata
import sys

from packaging.specifiers import SpecifierSet

installed = {d.name: d for d in importlib.metadata.distributions() if d.name not in {"pip", "interp-workbench"}}
for name, found in installed.items():
    allowed = found.metadata["Requires-Python"] or ""
    if not SpecifierSet(allowed).contains("3.11.2"):
        sys.exit(f"setup: {name} {found.version} needs Python {allowed}; install an older one in .venv first")
with open("constraints.txt", encoding="utf-8") as old:
    print(*(line for line in old if line.startswith("#")), sep="", end="")
for name in sorted(installed, key=str.lower):
    print(f"{name}=={installed[name].version.partition('+')[0]}")
END
    mv .venv/constraints.new constraints.txt
}

case "${1:-}" in
system) install_system || say "going on without it" ;;
browser) install_browser ;;
venv) install_venv ;;
tl4) install_tl4 "$2" ;;
constraints) write_constraints ;;
*) stop "usage: sh scripts/setup.sh system|browser|venv|tl4 REQUIREMENT|constraints" ;;
esac
