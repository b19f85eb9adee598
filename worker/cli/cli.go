// Package cli is the command line: it reads flags, runs one of the commands
// and turns the command's error into an exit status. Other packages do the
// work of the commands.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/cli/historycmd"
	"pg_stat_backtrace/worker/cli/measurecmd"
	"pg_stat_backtrace/worker/cli/topcmd"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	// exitLimited means that the result is incomplete, because the command has stopped at a limit of its cost.
	exitLimited = 3
)

// Main runs the command that args name and returns the exit status of this
// process: 0, 1 if the command failed, 2 if its arguments are wrong, 3 if the
// result is incomplete because of a limit of the command's cost.
func Main(version string, args []string, stdout, stderr io.Writer) int {
	keepBelowMemoryLimits()
	ctx, stopQuit := withQuit(context.Background())
	defer stopQuit()
	ctx, stop := signal.NotifyContext(ctx, endings()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	ctx, stopLimit := withProcessorLimit(ctx, stderr)
	defer stopLimit()
	defer suspendable(stderr)()
	out := console.NewCheckedWriter(stdout)
	root := newRoot(version)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.Err()
	}
	subject := func() console.Subject { return subjectOf(command, args) }
	switch {
	case errors.Is(context.Cause(ctx), errProcessorTime):
		return exitFailed
	case err == nil:
		return exitOK
	case errors.Is(err, console.ErrReported):
		return exitFailed
	case errors.Is(err, console.ErrLimited):
		console.Tellf(stderr, "%v", err)
		return exitLimited
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		console.Tellf(stderr, "interrupted")
		return exitFailed
	case errors.Is(err, console.ErrUsage):
		if command.Name() == "help" {
			command = command.Root()
		}
		console.Tellf(stderr, "%s\nTry \"%s --help\".", console.Describe(err, subject()), command.CommandPath())
		return exitUsage
	default:
		console.Tellf(stderr, "%s", console.Describe(err, subject()))
		return exitFailed
	}
}

// endings returns the signals after which a command ends cleanly. SIGHUP, which the kernel sends when the terminal is
// closed, is among them unless this program was started with nohup.
func endings() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

func newRoot(version string) *cobra.Command {
	root := &cobra.Command{
		Use:   "pg_stat_backtrace",
		Short: "Show the call stack of any PostgreSQL process, without gdb and without harm",
		Long: `pg_stat_backtrace shows what PostgreSQL's processes are doing, what they wait for,
and where their time and memory go. It needs no change of the server, and no
debugger.

The worker runs beside a server and answers the SQL functions of the extension
with the same name, such as pg_get_backtrace(pid). The other commands need no
worker and no extension, and work while the server takes no connections.`,
		Example: `  pg_stat_backtrace top
  pg_stat_backtrace doctor -D /var/lib/postgresql/15/main
  pg_stat_backtrace capture 4711
  pg_stat_backtrace waits -D /var/lib/postgresql/15/main
  pg_stat_backtrace worker -D /var/lib/postgresql/15/main`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := refuseIgnored(cmd, args, os.Getenv); err != nil {
				return err
			}
			if readsProcesses(cmd) {
				if err := procMounted(); err != nil {
					return err
				}
			}
			if err := refuseKernelThreads(cmd); err != nil {
				return err
			}
			return takeDataDir(cmd, args, os.Getenv, cmd.ErrOrStderr())
		},
	}
	root.SetFlagErrorFunc(flagError)
	addGroups(root, []commandGroup{
		{"now", "What a server does now:", []*cobra.Command{
			topcmd.NewTop(), newActivity(), newCapture(), measurecmd.NewPlan(), measurecmd.NewMemory(),
		}},
		{"measure", "Measurements:", []*cobra.Command{measurecmd.NewProfile(), measurecmd.NewWaits(), measurecmd.NewTrace()}},
		{"past", "What a server did:", []*cobra.Command{historycmd.NewHistory(), historycmd.NewIncident(version), historycmd.NewRules()}},
		{"files", "Files:", []*cobra.Command{newReport(), newSymbols(), newDecode()}},
		{service, "Service:", []*cobra.Command{newWorker(version), newDoctor(version), newVersion(version)}},
	})
	completeServers(root)
	for _, c := range root.Commands() {
		if c.HasSubCommands() {
			c.Args = unknownCommand
		}
	}
	finishFlags(root)
	help := newHelp(root)
	help.GroupID = service
	root.SetHelpCommand(help)
	return root
}

// service is the group of the commands that are of no other group.
const service = "service"

// commandGroup is a group of commands in the help, the most useful first.
type commandGroup struct {
	id, title string
	commands  []*cobra.Command
}

// addGroups adds the groups and their commands. The help lists them in this order.
func addGroups(root *cobra.Command, groups []commandGroup) {
	unsorted()
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.SetCompletionCommandGroupID(service)
}

// unsorted keeps the commands in the order in which they were added. Otherwise top would come near the end.
//
//nolint:gochecknoglobals // sets a variable of cobra once
var unsorted = sync.OnceFunc(func() { cobra.EnableCommandSorting = false })

// Commands returns the tree of all commands, for programs that write documentation of the command line.
func Commands(version string) *cobra.Command { return newRoot(version) }
