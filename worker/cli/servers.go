package cli

import (
	"errors"
	"io"

	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker/cli/console"
)

// envDataDir is the environment variable that PostgreSQL's own programs use where -D is missing.
const envDataDir = "PGDATA"

// errTwice is the error of a second -D with another directory.
var errTwice = errors.New("-D is given twice: run the command once for each server")

// onceValue is the value of a flag that names one thing: another thing is an error.
type onceValue struct {
	pflag.Value

	given string
}

// Set sets the value from the command line.
func (v *onceValue) Set(text string) error {
	if v.given != "" && v.given != text { // completion parses the command line twice
		return errTwice
	}
	v.given = text
	return v.Value.Set(text)
}

// finishServerFlags makes -D an error if it is given twice, in all commands, and names $PGDATA in its help.
func finishServerFlags(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		finishServerFlags(sub)
	}
	if f := cmd.Flags().Lookup("pgdata"); f != nil {
		f.Value = &onceValue{Value: f.Value}
	}
}

// takeDataDir uses $PGDATA as the data directory unless the command line or the environment chooses a server, processes or a
// file. It reports that.
func takeDataDir(cmd *cobra.Command, args []string, env func(string) string, stderr io.Writer) error {
	f := cmd.Flags().Lookup("pgdata")
	dir := env(envDataDir)
	if f == nil || f.Changed || dir == "" || choosesServer(cmd, args, env) {
		return nil
	}
	console.Tellf(stderr, "taking the server of $%s: -D %s", envDataDir, dir)
	return f.Value.Set(dir)
}

// choosesServer reports whether the command line or the environment chooses what a command reads without -D.
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

// subjectOf returns what a command was asked to read, for its errors.
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
