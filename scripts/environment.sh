# Sourced by the commands beside it: a virtual environment with this project installed, made once.
#
#   prepare_environment EXTRA    installs the project with an extra, or several (demo,torch); a later call
#                                with an unchanged pyproject.toml does nothing
#
# One dependency of the demo's task package is C source only. Where no compiler is found the task
# package is installed without it: the demo's own task does not use it.
#
# REDIS_REPLAY_VENV names the folder of the environment (default: .venv in the project).
# REDIS_REPLAY_PYTHON names the interpreter to make it with (default: the first python3 >= 3.11).

project=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
venv=${REDIS_REPLAY_VENV:-$project/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac

fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 2
}

# Sets python to the interpreter to use.
find_python() {
  local candidate version passed=
  set -- python3 python3.14 python3.13 python3.12 python3.11
  [ -z "${REDIS_REPLAY_PYTHON:-}" ] || set -- "$REDIS_REPLAY_PYTHON"
  for candidate; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case $version in
      3.[0-9] | 3.10 | [0-2].*) passed="$passed ($candidate is $version)" ;;
      *) python=$candidate && return ;;
    esac
  done
  [ -z "${REDIS_REPLAY_PYTHON:-}" ] || passed=" as REDIS_REPLAY_PYTHON=$REDIS_REPLAY_PYTHON$passed"
  fail "Python 3.11 or newer is needed and was not found$passed; install it, or name it in REDIS_REPLAY_PYTHON"
}

make_venv() {
  local python
  find_python
  printf 'Making a virtual environment in %s ...\n' "$venv" >&2
  "$python" -m venv "$venv" \
    || fail "$python cannot make a virtual environment in $venv, see above; if its 'venv' module is missing, on Debian: apt-get install python3-venv"
}

install() {
  PIP_RETRIES=${PIP_RETRIES:-2} \
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2 \
    || fail "pip could not install it, see its message above; the package registry must be reachable"
}

install_project() {
  local extra=$1
  if [ -n "${CC:-}" ] || command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1; then
    install --editable "$project[$extra]"
    return
  fi
  printf 'There is no C compiler here; installing the task package without its compiled part.\n' >&2
  if [ "$extra" = dev ]; then extra=picture,checks; else extra=${extra/demo/picture}; fi
  install --editable "$project[$extra]"
  install --no-deps --requirement "$project/scripts/tasks-without-compiler.txt"
}

prepare_environment() {
  local extra=$1 wanted stamp
  wanted="$project $(cksum <"$project/pyproject.toml")"
  for stamp in "$venv"/installed-*; do
    [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] || rm -f "$stamp"
  done
  [ ! -e "$venv/installed-$extra" ] || return 0
  [ "$extra" != demo ] || [ ! -e "$venv/installed-dev" ] || return 0
  # Without pip it is one that was not finished.
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
  printf 'Installing redis-replay[%s]; the first time this takes a minute or two ...\n' "$extra" >&2
  install_project "$extra"
  printf '%s\n' "$wanted" >"$venv/installed-$extra"
}
