# watch.sh PATTERN FILE: waits for a new line that fits, prints it, and ends. A file that is not there yet is waited for; one that
# is rotated away is followed by its name.
pipe=${TMPDIR:-/tmp}/watch.$$
mkfifo "$pipe" || exit 2
tail -n 0 -F "$2" >"$pipe" 2>/dev/null &
grep -m 1 -e "$1" <"$pipe"
found=$?
# Not a pipeline: tail would notice a closed pipe only with the next line.
kill $!
rm -f "$pipe"
exit $found
