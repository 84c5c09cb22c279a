#!/bin/sh
# Makes the development environment: uv in a private venv (.tools), then .venv exactly as uv.lock says.
#
# Needs some python3 to start from, and one of 3.11 or newer for the project itself. Where the system's Python cannot
# make a venv (Debian ships it without ensurepip) it helps itself, as far as the rights of the user go, and otherwise
# says which command to run. Arguments are handed to `uv sync` (for instance: --group bench).
set -eu
cd "$(dirname "$0")/.."

UV_VERSION=0.13.9
OLDEST=11   # python 3.OLDEST
NEWEST=14   # tried with; a newer one is taken only when nothing else is there

mkdir -p .tools

say() { echo "bootstrap: $*"; }
die() { echo "bootstrap: $*" >&2; exit 1; }

# Other environments must not leak into this one, and nothing may be downloaded but packages.
unset VIRTUAL_ENV PYTHONHOME PYTHONPATH UV_PROJECT UV_PROJECT_ENVIRONMENT UV_PYTHON UV_FROZEN UV_LOCKED CONDA_PREFIX || true
export UV_PYTHON_DOWNLOADS=never PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# Trust whom the machine trusts: a network may have an authority of its own.
if [ -f /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=1; fi
if [ -z "${HOME:-}" ] || [ ! -w "$HOME" ]; then   # a build user may have no home: keep the caches in here
  mkdir -p .tools/home
  HOME=$PWD/.tools/home
  export HOME
fi

apt_install() {   # apt_install PACKAGE...: true when installed; only as root and only where apt-get exists
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  say "apt-get install $*"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update && apt-get install -y --no-install-recommends "$@"; } >.tools/apt.log 2>&1 </dev/null
}

fits() {   # fits PYTHON NEWEST_MINOR: it runs, is in range and has what a Debian may have split off
  "$1" -c "import sys, sqlite3, ssl; sys.exit(not (3, $OLDEST) <= sys.version_info[:2] <= (3, $2))" >/dev/null 2>&1
}

find_python() {
  for name in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 /usr/bin/python3 /usr/local/bin/python3 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-4]*/bin/python; do
    if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 && fits "$name" "$NEWEST"; then
      "$name" -c 'import sys; print(sys.executable)'
      return 0
    fi
  done
  if command -v python3 >/dev/null 2>&1 && fits python3 99; then
    python3 -c 'import sys; print(sys.executable)'
    return 0
  fi
  return 1
}

venv_with_pip() {   # venv_with_pip PYTHON: leaves no half-made folder behind
  rm -rf .tools/bin .tools/lib .tools/lib64 .tools/include .tools/pyvenv.cfg
  "$1" -m venv .tools >/dev/null 2>&1 && .tools/bin/python -m pip --version >/dev/null 2>&1
}

install_uv() {   # install_uv PYTHON
  if venv_with_pip "$1"; then
    .tools/bin/python -m pip install --quiet "uv==$UV_VERSION"
    return
  fi
  # No ensurepip. A pip beside this Python can fill a plain folder, also where the system's packages are off limits.
  if "$1" -m pip --version >/dev/null 2>&1; then
    rm -rf .tools/pip
    if "$1" -m pip install --quiet --target .tools/pip "uv==$UV_VERSION"; then
      mkdir -p .tools/bin
      ln -sf ../pip/bin/uv .tools/bin/uv
      return
    fi
  fi
  minor=$("$1" -c 'import sys; print("3.%d" % sys.version_info[1])')
  if { apt_install "python$minor-venv" || apt_install python3-venv; } && venv_with_pip "$1"; then
    .tools/bin/python -m pip install --quiet "uv==$UV_VERSION"
    return
  fi
  if [ -f .tools/apt.log ]; then tail -n 5 .tools/apt.log >&2; fi
  die "$1 can make no virtual environment. On Debian or Ubuntu run: sudo apt-get install python$minor-venv; then run make again."
}

python=$(find_python) || {
  for package in python3.13 python3.12 python3.11; do
    if apt_install "$package" && python=$(find_python); then break; fi
    python=
  done
  [ -n "$python" ] || die "no Python 3.$OLDEST or newer found (python3 is $(python3 --version 2>&1 || echo missing))." \
    "Install one, or name it: make env PYTHON=/path/to/python3.12"
}

if [ "$(.tools/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
  say "installing uv $UV_VERSION into .tools"
  install_uv "$python"
fi

# An environment that works and is in range stays with its interpreter; a broken or moved one is made anew.
if [ -f .venv/.stamp ] && [ "$(cat .venv/.stamp)" != "$PWD" ]; then rm -rf .venv; fi
if [ -x .venv/bin/python ] && fits .venv/bin/python 99; then
  python=$PWD/.venv/bin/python
else
  rm -rf .venv
  say "making .venv with $("$python" --version) ($python)"
fi
.tools/bin/uv sync --frozen --quiet --python "$python" "$@" </dev/null
