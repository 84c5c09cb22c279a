#!/bin/sh
# Makes sure that the programs which tests start, and which no package of Python brings, are on this machine.
#
# They only have to lie there: tests start their own on sockets of their own, and leave what runs already alone. As root
# on Debian or Ubuntu a missing one is installed; everybody else is told what to install.
set -eu
cd "$(dirname "$0")/.."

found() { PATH="$PATH:/usr/sbin:/usr/local/sbin:/usr/local/bin:/opt/homebrew/bin" command -v "$1" >/dev/null 2>&1; }

install() {   # install PACKAGE
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
  mkdir -p .tools
  echo "servers: apt-get install $1"
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1   # of the runlevel in which no service is started
  { apt-get update && apt-get install -y --no-install-recommends "$1"; } >.tools/apt.log 2>&1 </dev/null
}

for program in pgbouncer; do
  if found "$program" || { install "$program" && found "$program"; }; then continue; fi
  if [ -f .tools/apt.log ]; then tail -n 5 .tools/apt.log >&2; fi
  echo "servers: the tests need $program, and it could not be installed. On Debian or Ubuntu run:" \
    "sudo apt-get install $program; on macOS: brew install $program. Then run make again." >&2
  exit 1
done
