package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/report/render"
	"pg_stat_backtrace/worker/serve/node"
)

// errUsage marks an error of use: wrong flags or arguments.
var errUsage = errors.New("bad use")

// usage marks err as an error of use.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

type usageError struct{ error }

func (e *usageError) Is(target error) bool { return target == errUsage }
func (e *usageError) Unwrap() error        { return e.error }

// usageArgs makes a wrong number of arguments an error of use.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return usage(check(cmd, args)) }
}

// unknownCommand refuses a word that is no command, and names the commands with a similar name.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return usage(fmt.Errorf("there is no command %q%s", args[0], didYouMean(args[0], "", names)))
}

// flagError words an error of the flags, and names the flags with a similar name.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if strings.Contains(err.Error(), "time: missing unit in duration") {
		return usage(fmt.Errorf("%w: write 10s, 500ms or 2m", err))
	}
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return usage(err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	return usage(fmt.Errorf("%s has no flag --%s%s", cmd.Name(), name, didYouMean(name, "--", names)))
}

// didYouMean returns "; did you mean ...?" with the names that begin with word, or differ from it in few letters. It
// returns "" if there are none.
func didYouMean(word, prefix string, names []string) string {
	var similar []string
	for _, name := range names {
		if word != "" && (strings.HasPrefix(name, word) || distance(word, name) <= 1+len(word)/4) {
			similar = append(similar, prefix+name)
		}
	}
	const most = 3
	if len(similar) == 0 || len(similar) > most {
		return ""
	}
	return "; did you mean " + strings.Join(similar, " or ") + "?"
}

// distance counts the letters to insert, remove or replace between two names (Levenshtein).
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func newVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  pg_stat_backtrace version",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "pg_stat_backtrace version %s\n", version)
			return err
		},
	}
}

// takeOnlyServer chooses the only server of this host, unless the user has chosen a server or processes. It says which
// server it is. If several run, the error lists them.
func takeOnlyServer(dataDir *string, chosen bool, stderr io.Writer) error {
	if *dataDir != "" || chosen {
		return nil
	}
	dir, err := onlyServer()
	if err != nil {
		return usage(fmt.Errorf("give a data directory with -D, or process ids: %w", err))
	}
	tellf(stderr, "taking the only server of this host: -D %s", dir)
	*dataDir = dir
	return nil
}

// onlyServer returns the data directory of the only server of this host. With several, the error lists them.
func onlyServer() (string, error) {
	found, denied, err := allServers()
	if err != nil {
		return "", err
	}
	return chooseServer(found, denied)
}

// allServers returns the data directories of the servers of this host. Denied counts the servers that this user may not
// examine.
func allServers() (found []string, denied int, err error) {
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

// chooseServer returns the only directory. Denied counts the servers that this user may not examine.
func chooseServer(found []string, denied int) (string, error) {
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
			fmt.Fprintf(&s, "\n  and %d servers that this user may not examine", denied)
		}
		return "", errors.New(s.String())
	case denied > 0:
		return "", fmt.Errorf("this user may not examine the %d servers of this host: run the command as root or as the server's user", denied)
	}
	return "", errors.New("no server was found on this host: give its data directory with -D")
}
