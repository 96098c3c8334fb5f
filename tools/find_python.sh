#!/bin/sh
# Print the path of a CPython that can hold the project's virtual environment: 3.12 or newer, with venv and ensurepip.
#
#   tools/find_python.sh            look on PATH, then among the versions that pyenv and uv keep off it
#   tools/find_python.sh COMMAND    take exactly this interpreter, or say why not
#
# A name on PATH proves nothing: pyenv puts a `python3.12` there that only prints an error unless the version is
# activated. So every candidate is run before it is believed. Exit status 1, with one line on stderr, when none fits.
set -u

# The probe prints the interpreter's own path when it fits, and the reason when it does not.
probe='
import sys, sysconfig
if sys.version_info < (3, 12):
    sys.exit("is Python %d.%d, but 3.12 or newer is needed" % sys.version_info[:2])
if sys.implementation.name != "cpython":
    sys.exit("is %s, but CPython is needed" % sys.implementation.name)
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("is a free-threaded build, for which not every dependency has a wheel")
try:
    import ensurepip, venv
except ImportError as error:
    sys.exit("has no %s module (on Debian and Ubuntu: apt install python3-venv)" % error.name)
print(sys.executable)
'

# Ends the script when $1 fits. A Python that is new enough and still refused (no venv module, say) is remembered.
refusal=
try() {
    "$1" -c "$probe" 2>/dev/null && exit 0
    why=$("$1" -c "$probe" 2>&1 | head -n 1)
    case $why in
    "has no "* | "is a free"*) refusal=${refusal:-"$1 $why"} ;;
    esac
}

if [ $# -gt 0 ]; then
    command -v "$1" >/dev/null 2>&1 || why="no such program"
    [ -n "${why-}" ] || try "$1"
    echo "error: PYTHON=$1 cannot be used: $why" >&2
    exit 1
fi

shims=
for name in python3.12 python3.13 python3.14 python3 python; do
    path=$(command -v "$name" 2>/dev/null) || continue
    try "$name"
    case $path in */shims/*) shims=${path%/shims/*} ;; esac
done

for root in "${PYENV_ROOT-}" "$(pyenv root 2>/dev/null)" "$shims" "${HOME-}/.pyenv"; do
    for path in "$root"/versions/3.1[2-9]*/bin/python "$root"/versions/3.[2-9][0-9]*/bin/python; do
        [ -x "$path" ] && try "$path"
    done
done

for path in "${XDG_DATA_HOME:-${HOME-}/.local/share}"/uv/python/cpython-3.*/bin/python3; do
    [ -x "$path" ] && try "$path"
done

echo "error: ${refusal:-no Python 3.12 or newer found; install one, or name it: make PYTHON=/path/to/python3.12}" >&2
exit 1
