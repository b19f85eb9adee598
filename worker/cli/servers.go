package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/report/render"
)

// envDataDir is the environment variable that PostgreSQL's own programs use if -D is missing.
const envDataDir = "PGDATA"

// errTwice is the error for two -D with different directories.
var errTwice = errors.New("-D is given twice: run the command once for each server")

// errEmpty is the error of -D with an empty text, as of a variable that is not set. No server is chosen in its place.
var errEmpty = errors.New("-D is empty: name a data directory")

// onceValue is the value of a flag that may have only one value. It is no error to give the flag again with the same value.
type onceValue struct {
	pflag.Value

	given string
}

// Set sets the value from the command line. It returns errTwice if another value was given before.
func (v *onceValue) Set(text string) error {
	if text == "" {
		return errEmpty
	}
	if v.given != "" && v.given != text { // the same value again is allowed, because completion parses the command line twice
		return errTwice
	}
	v.given = text
	return v.Value.Set(text)
}

// finishFlags makes it an error to give -D twice with different directories, in cmd and all its subcommands. It also removes the
// brackets around the defaults of lists in the help.
func finishFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		finishFlags(sub)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); list && f.DefValue != "[]" {
			f.DefValue = strings.Trim(f.DefValue, "[]")
		}
	})
	if f := cmd.Flags().Lookup("pgdata"); f != nil {
		f.Value = &onceValue{Value: f.Value}
	}
}

// takeDataDir uses $PGDATA as the data directory, and reports that on stderr. It does nothing if the command line or the
// environment chooses a server, processes or a file.
func takeDataDir(cmd *cobra.Command, args []string, env func(string) string, stderr io.Writer) error {
	f := cmd.Flags().Lookup("pgdata")
	dir := env(envDataDir)
	if f == nil || f.Changed || dir == "" || choosesServer(cmd, args, env) {
		return nil
	}
	console.Tellf(stderr, "taking the server of $%s: -D %s", envDataDir, dir)
	return f.Value.Set(dir)
}

// choosesServer reports whether the command line or the environment chooses, without -D, the server, processes or file to read.
func choosesServer(cmd *cobra.Command, args []string, env func(string) string) bool {
	if slices.ContainsFunc([]string{"all", "cluster", "connect", "core", "pid", "trace"}, cmd.Flags().Changed) {
		return true
	}
	switch cmd.Name() {
	case "doctor", "symbols", "worker":
		return len(args) > 0 || env("PGHOST")+env("PGHOSTADDR")+env("PGPORT")+env("PGSERVICE") != ""
	case "history", "list", "show", "bundle":
		return cmd.Flags().Changed(console.FlagRecordDir) || env("STATE_DIRECTORY") != ""
	}
	return slices.ContainsFunc(args, func(arg string) bool { return strings.Trim(arg, "0123456789") == "" })
}

// subjectOf returns the server and the processes that a command should read, for the texts of errors.
func subjectOf(cmd *cobra.Command, words []string) console.Subject {
	s := console.Subject{Words: words}
	if f := cmd.Flags().Lookup("pgdata"); f != nil {
		s.DataDir = f.Value.String()
	}
	numbers := slices.Clone(cmd.Flags().Args())
	for _, name := range []string{"trace", "pid"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			numbers = append(numbers, f.Value.String())
		}
	}
	for _, text := range numbers {
		if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
			s.PIDs = append(s.PIDs, pid)
		}
	}
	return s
}

// refuseKernelThreads returns an error if a command is given a thread of the kernel. Such a thread has no user stack and no private memory.
func refuseKernelThreads(cmd *cobra.Command) error {
	switch cmd.Name() {
	case "activity", "capture", "memory", "plan", "profile", "symbols", "trace", "waits":
	default:
		return nil
	}
	for _, pid := range subjectOf(cmd, nil).PIDs {
		if stat, err := process.ReadStat(pid); err == nil && stat.Flags&process.KernelThread != 0 {
			return fmt.Errorf("process %d (%s) is a thread of the kernel: it has no user stack. Root can read its kernel stack in /proc/%d/stack",
				pid, render.VisibleLine(stat.Comm), pid)
		}
	}
	return nil
}
