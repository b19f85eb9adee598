package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/worker"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/limits"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/serve/node"
)

// nodeFlags are the flags of a worker that serves every server of a host (the supervisor, with --all), and the hidden flags of the
// workers that it starts.
type nodeFlags struct {
	all        bool
	max        int
	below      []string
	uids       []int
	supervised bool
	listener   int
}

// Names of flags.
const (
	flagAll        = "all"
	flagMaxWorkers = "max-workers"
	flagBelow      = "below"
	flagUIDs       = "uid"
	flagSupervised = "supervised"
	flagListener   = "listener"
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
	fs.IntVar(&n.listener, flagListener, 0, "accept connections on the socket with this file descriptor")
	_ = fs.MarkHidden(flagSupervised)
	_ = fs.MarkHidden(flagListener)
	_ = cmd.MarkFlagDirname(flagBelow)
}

// check returns an error if flags contradict each other.
func (n *nodeFlags) check(cmd *cobra.Command, args []string) error {
	changed := cmd.Flags().Changed
	switch {
	case n.all && changed("pgdata"):
		return errors.New("--all and -D exclude each other")
	case n.all && len(args) > 0 && cluster.NamesServer(args[0]) != "":
		return fmt.Errorf("--all and %s in CONNSTRING exclude each other: every worker would connect to the same server; "+
			"give only what fits all servers, such as user and dbname", cluster.NamesServer(args[0]))
	case n.all && cluster.NamesServer(cmd.Flag(flagFallback).Value.String()) != "":
		return fmt.Errorf("--all and a server in --%s exclude each other; give only what fits all servers, such as user", flagFallback)
	case n.all && changed(flagExportName):
		return errors.New("--all and --export-cluster exclude each other: all servers would have the same name in the " +
			"receiver; without it the name is host and data directory")
	case n.all && n.supervised:
		return errors.New("--all and --supervised exclude each other")
	case slices.ContainsFunc(n.uids, func(uid int) bool { return uid < 0 || uid > limits.MaxUserID }):
		return fmt.Errorf("--uid must be a user id from 0 to %d", limits.MaxUserID)
	case n.max <= 0:
		return errors.New("--max-workers must be positive")
	case !n.all && (changed(flagMaxWorkers) || changed(flagBelow) || changed(flagUIDs)):
		return errors.New("--max-workers, --below and --uid need --all")
	case n.all:
		return checkPorts(cmd.Flag(flagListen).Value.String(), n.max)
	}
	return nil
}

// run starts a worker for each server of the host, with the flags and arguments of this command. If record has a directory, the
// workers record to folders below this directory.
func (n *nodeFlags) run(cmd *cobra.Command, args []string, log zerolog.Logger, record *worker.RecordConfig) error {
	if err := record.CheckRules(); err != nil {
		return console.Usage(err)
	}
	if err := cluster.NoNewPrivileges(); err != nil && !errors.Is(err, cluster.ErrNotStatic) {
		return err
	}
	ofListener := func(name string) bool { return strings.HasPrefix(name, flagListen) }
	common := append(passedOn(cmd.Flags(), func(name string) bool { return !ofListener(name) }), args...)
	serving := passedOn(cmd.Flags(), ofListener)
	listen := cmd.Flags().Lookup(flagListen)
	folders := userFolders{dir: record.To(), log: log, told: map[string]bool{}}
	cfg := node.Config{
		Log: log, Max: n.max, Below: n.below, UIDs: n.uids, Reload: reloads(cmd.Context(), log, record),
		Command: func(dataDir string, uid, slot int, listener *os.File) *exec.Cmd {
			words := append([]string{"worker", "--" + flagSupervised, "--pgdata=" + dataDir}, folders.words(uid)...)
			if listener != nil {
				address, _ := nthAddress(listen.Value.String(), slot)
				words = append(append(words, serving...), "--"+flagListen+"="+address, "--"+flagListener+"="+strconv.Itoa(firstExtraFile))
			}
			words = append(words, common...)
			command := exec.Command("/proc/self/exe", words...) //nolint:noctx,gosec // ends with its input
			command.Args[0] = os.Args[0]
			command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") })
			command.Stdout, command.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if listener != nil {
				command.ExtraFiles = []*os.File{listener}
			}
			return command
		},
	}
	if listen != nil && listen.Value.String() != "" {
		cfg.Address = func(slot int) string {
			address, _ := nthAddress(listen.Value.String(), slot)
			return listenAddress(address)
		}
	}
	return node.Run(cmd.Context(), cfg)
}

// reloads returns a channel that receives a value after each SIGHUP, if the file of rules is valid then. It returns nil if there
// is no such file. If the file has an error, the channel receives no value. So no worker reads the file, and all servers keep the
// old rules.
func reloads(ctx context.Context, log zerolog.Logger, record *worker.RecordConfig) <-chan struct{} {
	if !record.HasRules() {
		return nil
	}
	hangup, valid := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Ignore(syscall.SIGHUP) // as before signal.Notify
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
			}
			if err := record.CheckRules(); err != nil {
				log.Error().Err(err).Msg("the old rules stay")
				continue
			}
			select {
			case <-ctx.Done():
				return
			case valid <- struct{}{}:
			}
		}
	}()
	return valid
}

// firstExtraFile is the file descriptor that the first file of exec.Cmd.ExtraFiles has in the new process.
const firstExtraFile = 3

// nthAddress returns the address of the listener of the worker with this slot number (see package node): the port of address plus
// slot.
func nthAddress(address string, slot int) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("--listen with --all must be HOST:PORT: %w", err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	const last = 65535
	if err != nil || number == 0 || slot > last-int(number) {
		return "", fmt.Errorf("--listen with --all needs the number of a port, not %q", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(number)+slot)), nil
}

// checkPorts returns an error if address and this number of workers need a port above the last one; see nthAddress. An empty address
// stands for no ports.
func checkPorts(address string, workers int) error {
	if address == "" {
		return nil
	}
	if _, err := nthAddress(address, 0); err != nil {
		return err
	}
	if _, err := nthAddress(address, workers-1); err != nil {
		return fmt.Errorf("--listen %s leaves no ports for %d workers: give a lower port, or a smaller --max-workers", address, workers)
	}
	return nil
}

// listenAddress returns an address in the form for package net. It replaces "localhost", so that no name is looked up.
func listenAddress(address string) string {
	if port, ok := strings.CutPrefix(address, "localhost:"); ok {
		return "127.0.0.1:" + port
	}
	return address
}

// passedOn returns the flags to pass to each worker: the flags of the command line for whose names the callback wanted returns
// true, except flags that concern only the supervisor.
func passedOn(fs *pflag.FlagSet, wanted func(name string) bool) (words []string) {
	fs.Visit(func(f *pflag.Flag) {
		if !wanted(f.Name) ||
			slices.Contains([]string{flagAll, flagMaxWorkers, flagBelow, flagUIDs, flagListen, flagListener, console.FlagRecordDir}, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = slices.Clone(list.GetSlice())
		}
		for i := range values {
			if f.Value.Type() == "stringSlice" { // the worker parses each value as CSV
				values[i] = csvField(values[i])
			}
		}
		for _, value := range values {
			words = append(words, fmt.Sprintf("--%s=%s", f.Name, value))
		}
	})
	return words
}

// csvField returns a text as a field of CSV, with quotes only if they are needed.
func csvField(text string) string {
	if text != "" && !strings.ContainsAny(text, "\",\r\n") {
		return text
	}
	return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
}

// supervisedMemory is the limit of the private memory of a supervised worker, in bytes. An ordinary worker needs some 20 to 60 MB,
// and its garbage collector works harder from 320 MB on. The user of a server can make its worker need much more. Because of the
// limit, only that worker then ends, and the workers of other users keep their memory.
const supervisedMemory = 1 << 30

// limitMemory sets the limit supervisedMemory for this process, unless it has a lower limit.
func limitMemory() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_DATA, &limit) == nil && limit.Max > supervisedMemory {
		_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: min(limit.Cur, supervisedMemory), Max: supervisedMemory})
	}
}

// lifeline returns the context of a worker. If the worker is supervised, lifeline also sets its limits and the fields of cfg for a
// supervised worker. Its context then ends at the end of standard input, which the kernel also closes when the supervisor is
// killed. A line of standard input
// with the word ports has the ports of the workers of this host. Each other line is a request to read the file of rules again.
func (n *nodeFlags) lifeline(cmd *cobra.Command, cfg *worker.Config) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(cmd.Context())
	if n.supervised {
		cfg.Foreign = os.Geteuid() == 0
		limitMemory()
		if n.listener > 0 {
			cfg.Serve.Inherited = os.NewFile(uintptr(n.listener), "listener")
		}
		cfg.Log = cfg.Log.With().Str("cluster", cfg.DataDir).Logger()
		reload := make(chan struct{}, 1)
		cfg.Record.Reload = reload
		ports := &atomic.Pointer[[]int]{}
		cfg.Serve.Ports = func() []int {
			if list := ports.Load(); list != nil {
				return *list
			}
			return nil
		}
		go func() {
			defer cancel()
			input := bufio.NewReader(cmd.InOrStdin())
			for {
				line, err := input.ReadSlice('\n')
				if err != nil { // at the end of the input, or if a line is too long
					return
				}
				if list, ok := strings.CutPrefix(string(line), "ports "); ok {
					ports.Store(portsOf(list))
					continue
				}
				select {
				case reload <- struct{}{}:
				default: // the worker will read the file anyway
				}
			}
		}()
	}
	return ctx, cancel
}

// portsOf reads the numbers of ports, with spaces between them. It leaves out other words.
func portsOf(list string) *[]int {
	ports := []int{}
	for word := range strings.FieldsSeq(list) {
		if n, err := strconv.ParseUint(word, 10, 16); err == nil && n > 0 {
			ports = append(ports, int(n))
		}
	}
	return &ports
}
