package cli

import (
	"errors"
	"fmt"
	"strconv"
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
	return console.Usage(fmt.Errorf("there is no command %q%s", strings.TrimSpace(parent+" "+args[0]), console.DidYouMean(args[0], "", names)))
}

// flagError returns an error of the flag parser in this program's words: no text of the parser or of package strconv reaches the user.
func flagError(cmd *cobra.Command, err error) error {
	var wrong *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	var syntax *pflag.InvalidSyntaxError
	var unknown *pflag.NotExistError
	switch {
	case errors.Is(err, errTwice):
		err = errTwice
	case errors.Is(err, errEmpty):
		err = errEmpty
	case errors.As(err, &wrong):
		err = wrongValue(wrong)
	case errors.As(err, &missing):
		value, _ := pflag.UnquoteUsage(missing.GetFlag())
		err = fmt.Errorf("--%s needs a value: --%s %s", missing.GetFlag().Name, missing.GetFlag().Name, value)
	case errors.As(err, &syntax):
		err = fmt.Errorf("%s is no option", console.Quoted(syntax.GetSpecifiedFlag()))
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		err = unknownLetter(cmd, unknown)
	case errors.As(err, &unknown):
		err = unknownName(cmd, unknown.GetSpecifiedName())
	}
	return console.Usage(err)
}

// wrongValue says which values an option takes.
func wrongValue(err *pflag.InvalidValueError) error {
	name, value, cause := "--"+err.GetFlag().Name, err.GetValue(), err.Unwrap()
	kind := err.GetFlag().Value.Type()
	quoted := console.Quoted(value)
	switch {
	case kind != "bool" && strings.HasPrefix(value, "--"):
		return fmt.Errorf("%s needs a value, but the option %s follows", name, quoted)
	case kind == "bool":
		return fmt.Errorf("%s takes no value, but has %s", name, quoted)
	case kind == "duration" && strings.Contains(cause.Error(), "missing unit"):
		return fmt.Errorf("%s has no unit in %s: write 10s, 500ms or 2m", name, quoted)
	case kind == "duration" && strings.Contains(cause.Error(), "unknown unit"):
		return fmt.Errorf("%s has an unknown unit in %s: the units are ms, s, m and h, as in 500ms, 10s or 1h30m", name, quoted)
	case kind == "duration":
		return fmt.Errorf("%s must be a time such as 10s, 500ms or 2m, not %s", name, quoted)
	case errors.Is(cause, strconv.ErrRange):
		return fmt.Errorf("%s must be a number nearer to 0, not %s", name, quoted)
	case kind == "float64":
		return fmt.Errorf("%s must be a number, not %s", name, quoted)
	case kind == "int" || kind == "intSlice":
		whole := "a number"
		if _, err := strconv.ParseFloat(value, 64); err == nil {
			whole = "a whole number"
		}
		return fmt.Errorf("%s must be %s, not %s", name, whole, quoted)
	case kind == "stringSlice": // read as a line of CSV
		return fmt.Errorf("%s has a quotation mark at a wrong place: %s", name, quoted)
	}
	return fmt.Errorf("%s cannot be %s", name, quoted)
}

// unknownLetter is the error for an option of one letter that the command does not have.
func unknownLetter(cmd *cobra.Command, err *pflag.NotExistError) error {
	word := err.GetSpecifiedShortnames()
	switch letter := []rune(err.GetSpecifiedName())[0]; {
	case strings.Trim(word, "0123456789") == "":
		return fmt.Errorf("-%s is neither an option nor a process id", word)
	case word == string(letter):
		return fmt.Errorf("%s has no option -%s", cmd.Name(), word)
	default:
		return fmt.Errorf("%s has no option -%c, as in %s", cmd.Name(), letter, console.Quoted("-"+word))
	}
}

// unknownName is the error for an option that the command does not have. It names options with a similar name.
func unknownName(cmd *cobra.Command, name string) error {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return fmt.Errorf("%s has no flag --%s%s", cmd.Name(), name, console.DidYouMean(name, "--", names))
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
