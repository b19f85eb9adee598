// Command pg_stat_backtrace shows what a process is doing: the worker answers
// SQL calls of pg_get_backtrace(), capture prints stacks on the command line,
// doctor says whether captures will work here.
package main

import (
	"os"

	"pg_stat_backtrace/worker/cli"
)

// version is set by the Makefile.
var version = "1.2.0"

func main() {
	os.Exit(cli.Main(version, os.Args[1:], os.Stdout, os.Stderr))
}
