// Package doctor checks whether captures work on this machine, and which features are available. It changes nothing: it
// looks, and captures one process of the server as the worker would.
//
// SymbolsOf reports the sources of a stack's names (symbols.go). For each image of a process, or for a file, it
// lists the symbols and debug information. It counts the functions that have a name, and says what to install or to
// configure for the rest. It uses the same code as captures (package symbolize), so its report agrees with the stacks. It
// stops no process and uses no network. It finds downloaded debug files through an interface.
package doctor

import (
	"context"
	"os"
)

// Options says what to check. The zero value checks the server that libpq's defaults lead to.
type Options struct {
	ConnString string
	DataDir    string
	Version    string
	// Foreign has the meaning of pgcluster.ConnOptions.Foreign. Examine sets it for root, whose servers can belong to any
	// user.
	Foreign bool
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

// finding is the result of one check, with the remedy.
type finding struct {
	mark mark
	what string // one or two words
	text string
	hint string
}

// Examine makes all checks. A context that ends leaves out the checks after it.
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
