// Command layoutgen writes the file of package layout for one major version of PostgreSQL.
//
//	layoutgen -headers DIR [-source DIR] [-known FILE] [-o FILE]
//
// It compiles one constant for each member that package layout declares, and reads the constants from the object file.
// Public structures come from the server's headers. Private ones come from a file of the source tree of the same major
// version, or stay absent. A file of known values has more members, one in a line: "PGPROC.pid 64". If a compiled
// value differs from the known one, the program fails.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	var o options
	flag.StringVar(&o.headers, "headers", "", "the server's headers, with postgres.h")
	flag.StringVar(&o.source, "source", "", "a source tree of the same major version, for private structures")
	flag.StringVar(&o.known, "known", "", "a file of known values")
	flag.StringVar(&o.compiler, "cc", "cc", "the C compiler of a 64-bit machine")
	flag.IntVar(&o.major, "major", 0, "the major version, if there are no headers")
	flag.StringVar(&o.output, "o", "/dev/stdout", "the file to write")
	flag.Parse()
	if err := generate(&o); err != nil {
		fmt.Fprintln(os.Stderr, "layoutgen:", err)
		os.Exit(1)
	}
}
