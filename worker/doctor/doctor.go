// Package doctor says, line by line, whether captures will work on this
// machine, and what to do if not. It changes nothing: it looks, and captures
// one process of the server as the worker would.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"

	"pg_stat_backtrace/worker/report/visible"
)

// Options says what to look at; the zero value is the server that libpq's
// defaults lead to.
type Options struct {
	ConnString string
	DataDir    string
	Version    string
	// Foreign has the meaning of pgcluster.ConnOptions.Foreign. Run sets it for root, whose servers can belong to any user.
	Foreign bool
}

// mark is how a finding turned out.
type mark string

const (
	good mark = "ok"
	warn mark = "warn"
	bad  mark = "FAIL"
)

// finding is one line of the report, and what to do about it.
type finding struct {
	mark mark
	what string // one or two words
	text string
	hint string
}

// report collects findings and prints each as soon as it is there.
type report struct {
	w      io.Writer
	err    error
	failed int
}

func (r *report) add(f finding) {
	if f.mark == bad {
		r.failed++
	}
	// Names of roles, databases and directories are in it, which other people have chosen.
	r.printf("%-5s %-14s %s\n", f.mark, f.what+":", visible.Line(f.text))
	if f.hint != "" && f.mark != good {
		r.printf("%20s -> %s\n", "", visible.Line(f.hint))
	}
}

func (r *report) printf(format string, args ...any) {
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.w, format, args...)
	}
}

// Run prints the report to w and returns how many findings are failures. An
// error means that the report could not be written.
func Run(ctx context.Context, w io.Writer, o Options) (failed int, err error) {
	r := &report{w: w}
	o.Foreign = o.Foreign || os.Geteuid() == 0
	r.add(platform())
	r.add(yama())
	r.add(capability())
	for _, f := range append(confinement(), rights()...) {
		r.add(f)
	}
	server(ctx, r, o)
	return r.failed, r.err
}
