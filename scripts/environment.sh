# Sourced by the commands beside it: a virtual environment with this project installed, made once.
#
#   prepare_environment EXTRA    installs the project with an extra; a later call with an unchanged
#                                pyproject.toml does nothing
#
# REDIS_REPLAY_VENV names the folder of the environment (default: .venv in the project).
# REDIS_REPLAY_PYTHON names the interpreter to make it with (default: the first python3 >= 3.11).

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${REDIS_REPLAY_VENV:-$project/.venv}

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 2
}

find_python() {
  local candidate
  for candidate in ${REDIS_REPLAY_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null 2>&1 \
      && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  return 1
}

prepare_environment() {
  local extra=$1 python wanted stamp
  stamp=$venv/installed-$extra
  wanted=$(cksum <"$project/pyproject.toml")
  if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    return
  fi
  if [ ! -x "$venv/bin/python" ]; then
    python=$(find_python) \
      || fail "Python 3.11 or newer is needed and was not found; install it, or name it in REDIS_REPLAY_PYTHON"
    printf 'Making a virtual environment in %s ...\n' "$venv" >&2
    "$python" -m venv "$venv" \
      || fail "$python has no working 'venv' module; on Debian: apt-get install python3-venv"
  fi
  printf 'Installing redis-replay[%s]; the first time this takes a minute or two ...\n' "$extra" >&2
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$project[$extra]" >&2 \
    || fail "installing from the package registry failed; see pip's message above"
  printf '%s\n' "$wanted" >"$stamp"
}
