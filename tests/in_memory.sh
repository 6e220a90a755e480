# Runs a command with its temporary files in memory, where there is room: in_memory.sh COMMAND ...
#
# Tests wait for the disk more than for the processor, and what they want to know of it is whether
# files are right, not whether they survive a power failure. The files are deleted in the end, those
# that killed processes have left included, unless the command has failed with 1, as pytest does if
# a test has failed.

memory=/dev/shm
room=$(df -k "$memory" 2>/dev/null | awk 'NR == 2 { print int($4 / 1e6) }')
if [ "${room:-0}" -lt 6 ] || ! TMPDIR=$(mktemp -d "$memory/jetlet-tests-XXXXXX"); then
    exec "$@"
fi
# A server that does not run as root has to get at its files.
chmod 711 "$TMPDIR"
export TMPDIR
trap 'trap "" INT TERM; wait; rm -rf "$TMPDIR"; exit 130' INT TERM
"$@"
code=$?
if [ "$code" = 1 ]; then
    echo "Files of failed tests are in $TMPDIR" >&2
else
    rm -rf "$TMPDIR"
fi
exit "$code"
