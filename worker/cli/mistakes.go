package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker/cli/console"
)

// unknownCommand returns an error for a word that is not a command. The error names commands with a similar name.
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
	_, parent, _ := strings.Cut(cmd.CommandPath(), " ")
	return console.Usage(fmt.Errorf("there is no command %q%s", strings.TrimSpace(parent+" "+args[0]), didYouMean(args[0], "", names)))
}

// flagError returns an error of the flag parser in better words. For an unknown flag, it names flags with a similar name.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if strings.Contains(err.Error(), "time: missing unit in duration") {
		return console.Usage(fmt.Errorf("%w: write 10s, 500ms or 2m", err))
	}
	if strings.Contains(err.Error(), errTwice.Error()) {
		return console.Usage(errTwice)
	}
	if strings.Contains(err.Error(), errEmpty.Error()) {
		return console.Usage(errEmpty)
	}
	if strings.Contains(err.Error(), "time: unknown unit") {
		return console.Usage(fmt.Errorf("%w: the units are ms, s, m and h, as in 500ms, 10s or 1h30m", err))
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		name := "--" + wrong.GetFlag().Name
		switch kind := wrong.GetFlag().Value.Type(); kind {
		case "int", "float64", "intSlice":
			return console.Usage(fmt.Errorf("%s must be a number, not %q", name, wrong.GetValue()))
		case "duration":
			return console.Usage(fmt.Errorf("%s must be a time such as 10s, 500ms or 2m, not %q", name, wrong.GetValue()))
		case "bool":
			return console.Usage(fmt.Errorf("%s takes no value, but has %q", name, wrong.GetValue()))
		}
	}
	if errors.As(err, &unknown) && strings.Trim(unknown.GetSpecifiedShortnames(), "0123456789") == "" && unknown.GetSpecifiedShortnames() != "" {
		return console.Usage(fmt.Errorf("-%s is neither an option nor a process id", unknown.GetSpecifiedShortnames()))
	}
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return console.Usage(err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	return console.Usage(fmt.Errorf("%s has no flag --%s%s", cmd.Name(), name, didYouMean(name, "--", names)))
}

// didYouMean returns "; did you mean ...?" with the names that begin with word or differ from word in few letters. It returns ""
// if there are none, or more than three.
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

// distance returns the Levenshtein distance of two names: the number of bytes to insert, remove or replace. It returns 64 if a name
// is longer than 64 bytes.
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

// newHelp returns the command "help". It replaces cobra's, which does not fail for a command that does not exist.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Print the help of a command",
		Example: "  pg_stat_backtrace help capture",
		ValidArgsFunction: func(_ *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			parent, _, err := root.Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []cobra.Completion
			for _, c := range parent.Commands() {
				if c.IsAvailableCommand() && strings.HasPrefix(c.Name(), word) {
					names = append(names, c.Name()+"\t"+c.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			found, rest, err := root.Find(args)
			if err != nil && len(args) > 0 {
				return unknownCommand(root, args)
			}
			if len(rest) > 0 {
				return unknownCommand(found, rest)
			}
			found.InitDefaultHelpFlag()
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}

func newVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  pg_stat_backtrace version",
		Args:    console.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "pg_stat_backtrace version %s\n", version)
			return err
		},
	}
}
