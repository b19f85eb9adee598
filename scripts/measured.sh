#!/usr/bin/env bash
# measured.sh PROGRAM [ARGUMENT...]: run a test program for `go test -exec`, and append its processor time to the file
# that PGSB_TEST_PROCESSOR_TIMES names: a line with seconds and the package's folder. The time includes the processes
# that the program started and waited for, such as its servers.
"$@"
status=$?
if [[ -n ${PGSB_TEST_PROCESSOR_TIMES:-} ]]; then
	# The second line of times is about children. In a pipeline, times would run in a process without children.
	times > >(awk -v "folder=$PWD" 'NR == 2 {
		split($1 "s" $2, part, /[ms]+/)
		printf "%.2f %s\n", 60 * part[1] + part[2] + 60 * part[3] + part[4], folder
	}' >>"$PGSB_TEST_PROCESSOR_TIMES")
	wait $!
fi
exit "$status"
