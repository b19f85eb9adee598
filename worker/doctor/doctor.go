// Package doctor checks whether captures work on this machine, and which features are available. It changes nothing. It
// reads settings and files, and captures one process of the server like the worker.
//
// SymbolsOf reports the sources of a stack's names (symbols.go). For each image of a process, or for a file, it
// lists the symbols and debug information. It counts the functions that have a name, and says what to install or to
// configure for the other functions. It uses the same code as captures (package symbolize), so its report agrees with
// the stacks. It stops no process and uses no network. It finds downloaded debug files through an interface.
package doctor

import (
	"context"
	"os"
)

// Options selects the server to check. The zero value selects the server of libpq's defaults.
type Options struct {
	ConnString string
	DataDir    string
	Version    string
	// Foreign has the meaning of cluster.ConnOptions.Foreign. Examine sets it for root, whose servers can belong to any
	// user.
	Foreign bool
	// Servers lists the data directories of the servers that this user may examine. It may be nil.
	Servers func() []string
	// Progress is called before each group of checks with its subject. It may be nil.
	Progress func(subject string)
}

// mark is the result of a check.
type mark string

const (
	good mark = "ok"
	// absent means that a feature is not available here. Everything else works without it.
	absent mark = "n/a"
	warn   mark = "warn"
	bad    mark = "FAIL"
)

// finding is the result of one check: what was checked, the result as text, and the remedy as a hint or "".
type finding struct {
	mark mark
	what string // one or two words
	text string
	hint string
}

// Examine makes all checks. If ctx ends, it leaves out the remaining checks.
func Examine(ctx context.Context, o Options) *Report {
	r := &Report{}
	o.Foreign = o.Foreign || os.Geteuid() == 0
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	o.Progress("this host")
	r.add(platform(), yama(), capability())
	r.add(confinement()...)
	o.Progress("the kernel's features")
	r.add(rights()...)
	server(ctx, r, o)
	return r
}
