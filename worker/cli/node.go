package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/node"
	"pg_stat_backtrace/worker/pgcluster"
)

// nodeFlags are the flags of a worker that serves every cluster of a host, and of the workers that it starts.
type nodeFlags struct {
	all        bool
	max        int
	below      []string
	uids       []int
	supervised bool
}

// The flags' names.
const (
	flagAll        = "all"
	flagMaxWorkers = "max-workers"
	flagBelow      = "below"
	flagUIDs       = "uid"
	flagSupervised = "supervised"
	flagListen     = "listen"
	flagExportName = "export-cluster"
)

func (n *nodeFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVar(&n.all, flagAll, false, "serve every server of this host: start a worker for each")
	fs.IntVar(&n.max, flagMaxWorkers, node.DefaultMax, "with --all: start at most `N` workers")
	fs.StringSliceVar(&n.below, flagBelow, nil,
		"with --all: only servers whose data directory is in `DIRECTORY`, as they name it (may be given several times)")
	fs.BoolVar(&n.supervised, flagSupervised, false, "end when the standard input ends")
	fs.IntSliceVar(&n.uids, flagUIDs, nil,
		"with --all: only servers that run as user id `UID` (may be given several times)")
	_ = fs.MarkHidden(flagSupervised)
	_ = cmd.MarkFlagDirname(flagBelow)
}

// check returns an error if the flags contradict each other.
func (n *nodeFlags) check(cmd *cobra.Command, args []string) error {
	changed := cmd.Flags().Changed
	switch {
	case n.all && changed("pgdata"):
		return errors.New("--all and -D exclude each other")
	case n.all && len(args) > 0 && pgcluster.NamesServer(args[0]) != "":
		return fmt.Errorf("--all and %s in CONNSTRING exclude each other: every worker would connect to the same server; "+
			"give only what fits all servers, such as user and dbname", pgcluster.NamesServer(args[0]))
	case n.all && changed(flagExportName):
		return errors.New("--all and --export-cluster exclude each other: all servers would have the same name in the " +
			"receiver; without it the name is host and data directory")
	case n.all && n.supervised:
		return errors.New("--all and --supervised exclude each other")
	case n.max <= 0:
		return errors.New("--max-workers must be positive")
	case !n.all && (changed(flagMaxWorkers) || changed(flagBelow) || changed(flagUIDs)):
		return errors.New("--max-workers, --below and --uid need --all")
	}
	return nil
}

// run starts a worker for each cluster of the host, with the flags and arguments of this command.
func (n *nodeFlags) run(cmd *cobra.Command, args []string, log zerolog.Logger) error {
	if err := pgcluster.NoNewPrivileges(); err != nil && !errors.Is(err, pgcluster.ErrNotStatic) {
		return err
	}
	common := append(passedOn(cmd.Flags()), args...)
	listen := cmd.Flags().Lookup(flagListen)
	if listen != nil && listen.Value.String() != "" {
		if _, err := nthAddress(listen.Value.String(), 0); err != nil {
			return usage(err)
		}
	}
	return node.Run(cmd.Context(), node.Config{
		Log: log, Max: n.max, Below: n.below, UIDs: n.uids,
		Command: func(dataDir string, slot int) *exec.Cmd {
			words := append([]string{"worker", "--" + flagSupervised, "--pgdata=" + dataDir}, common...)
			if listen != nil && listen.Value.String() != "" {
				address, _ := nthAddress(listen.Value.String(), slot)
				words = append(words, "--"+flagListen+"="+address)
			}
			command := exec.Command("/proc/self/exe", words...) //nolint:noctx,gosec // ends with its input
			command.Args[0] = os.Args[0]
			command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") })
			command.Stdout, command.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return command
		},
	})
}

// nthAddress returns the address of the worker with this slot: its port is the given one plus
// the slot.
func nthAddress(address string, slot int) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("--listen with --all must be HOST:PORT: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	const last = 65535
	if err != nil || number == 0 || int(number)+slot > last {
		return "", fmt.Errorf("--listen with --all needs the number of a port, not %q", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number)+slot)), nil
}

// passedOn returns the flags that were given and concern each worker.
func passedOn(fs *pflag.FlagSet) (words []string) {
	fs.Visit(func(f *pflag.Flag) {
		if slices.Contains([]string{flagAll, flagMaxWorkers, flagBelow, flagUIDs, flagListen}, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			words = append(words, fmt.Sprintf("--%s=%s", f.Name, value))
		}
	})
	return words
}

// lifeline returns the context of a worker. The context of a supervised worker ends with its standard
// input, which the kernel closes also when the supervisor is killed. Its log names the cluster.
func (n *nodeFlags) lifeline(cmd *cobra.Command, cfg *worker.Config) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(cmd.Context())
	if n.supervised {
		cfg.Foreign = os.Geteuid() == 0
		cfg.Log = cfg.Log.With().Str("cluster", cfg.DataDir).Logger()
		go func() {
			_, _ = io.Copy(io.Discard, cmd.InOrStdin())
			cancel()
		}()
	}
	return ctx, cancel
}
