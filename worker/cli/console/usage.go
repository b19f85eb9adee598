package console

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/report/units"
	"pg_stat_backtrace/worker/serve/node"
)

// ErrUsage marks a usage error: wrong flags or arguments.
var ErrUsage = errors.New("bad use")

// Usage marks err as a usage error, so that it is an ErrUsage. It returns nil for nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

type usageError struct{ error }

func (e *usageError) Is(target error) bool { return target == ErrUsage }
func (e *usageError) Unwrap() error        { return e.error }

// UsageArgs returns a function that calls check and marks its errors as usage errors.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err != nil && strings.Contains(err.Error(), "arg(s)") { // replace cobra's message
			err = fmt.Errorf("wrong number of arguments, %d: the usage is %q", len(args), cmd.UseLine())
		}
		return Usage(err)
	}
}

// NoArgs returns an error if there are arguments. It is for commands without subcommands.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.Name() == "top" && strings.Trim(args[0], "0123456789") == "":
		return Usage(fmt.Errorf("top takes no process id as an argument; for one session: top --pid %s", args[0]))
	}
	_, name, _ := strings.Cut(cmd.CommandPath(), " ")
	return Usage(fmt.Errorf("%s takes no arguments, but got %q", name, args[0]))
}

// ErrBoth is the error for process ids together with a data directory.
var ErrBoth = errors.New("give either -D or process ids, not both: -D stands for all processes of a server")

// TakeOnlyServer sets *dataDir to the data directory of this host's only server, and reports that on stderr. It does
// nothing if *dataDir is set, or if chosen is set because the user has chosen a server in another way. If several
// servers run, the error lists them.
func TakeOnlyServer(dataDir *string, chosen bool, stderr io.Writer) error {
	if *dataDir != "" || chosen {
		return nil
	}
	found, denied, err := AllServers()
	if err != nil {
		return err
	}
	dir, err := ChooseServer(found, denied)
	if err != nil {
		if errors.Is(err, errDenied) {
			return err
		}
		return Usage(fmt.Errorf("give a data directory with -D, or process ids: %w", err))
	}
	Tellf(stderr, "taking the only server of this host: -D %s", dir)
	*dataDir = dir
	return nil
}

// errDenied means that there are servers, but this user may examine none of them.
var errDenied = errors.New("this user may examine no server")

// AllServers returns the data directories of the servers of this host. denied is the number of servers that this user may not
// examine. The directories of these are not in found.
func AllServers() (found []string, denied int, err error) {
	processes, denied, err := node.Running()
	if err != nil {
		return nil, 0, err
	}
	for _, p := range processes {
		if c, err := cluster.ByDataDir(p.DataDir); err == nil && c.PostmasterPID == p.PID {
			found = append(found, p.DataDir)
		}
	}
	return found, denied, nil
}

// ChooseServer returns the only directory of found. denied is the number of servers that this user may not examine. If there is not
// exactly one server, the error lists the servers.
func ChooseServer(found []string, denied int) (string, error) {
	switch {
	case len(found) == 1 && denied == 0:
		return found[0], nil
	case len(found) > 0:
		const most = 100
		var s strings.Builder
		fmt.Fprintf(&s, "%d servers run on this host. Choose one with -D:", len(found)+denied)
		for i, dir := range found {
			if i == most {
				fmt.Fprintf(&s, "\n  and %d more", len(found)-most)
				break
			}
			fmt.Fprintf(&s, "\n  -D %s", render.VisibleLine(dir))
		}
		if denied > 0 {
			fmt.Fprintf(&s, "\n  and %s that this user may not examine", units.Count(denied, "server"))
		}
		return "", errors.New(s.String())
	case denied > 0:
		return "", fmt.Errorf("%w: %d run on this host. Run the command as their user or as root, for example with sudo", errDenied, denied)
	}
	return "", errors.New("no server was found on this host: give its data directory with -D")
}
