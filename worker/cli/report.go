package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"
	"github.com/spf13/cobra"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// reportFlags are the flags of the command report.
type reportFlags struct {
	format     string
	output     string
	title      string
	sampleType string
	groupBy    []string
	top        int
}

const reportLong = `Convert a profile to another format, or to an HTML page with a flame graph.

FILE is a pprof file of this or of any other program, or folded stacks such as
"capture --format folded" prints. "-" is standard input. Several files are added
up into one profile.

The page is one file. It needs no network. A browser opens it from disk.`

func newReport() *cobra.Command {
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "report FILE...",
		Short: "Convert a profile to HTML, speedscope, folded stacks, text, JSON or pprof",
		Long:  reportLong,
		Example: `  pg_stat_backtrace report profile.pb.gz -o profile.html
  pg_stat_backtrace report profile.pb.gz -f text --sample-type offcpu --top 5
  pg_stat_backtrace report profile.pb.gz -f folded --group-by query_id | flamegraph.pl > queries.svg
  pg_stat_backtrace capture --format folded -n 100 -i 20ms 4711 | pg_stat_backtrace report - -o 4711.html`,
		Args: console.UsageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd, args); err != nil {
				return console.Usage(err)
			}
			return f.run(cmd.Context(), args, console.NewInterruptible(cmd.Context(), cmd.InOrStdin()), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.format, "format", "f", "",
		"`FORMAT` of the result: "+strings.Join(profilefmt.Formats(), ", ")+
			" (default: by the name of the output file, or text)")
	fs.StringVarP(&f.output, "output", "o", "", "write to `FILE` instead of standard output")
	fs.StringVar(&f.title, "title", "", "`TITLE` of the result (default: the name of the input file)")
	fs.StringVar(&f.sampleType, "sample-type", "",
		"the `TYPE` of value, such as cpu or inuse_space, that text and folded print, that html and speedscope show "+
			"first, and that pprof and json have as their default")
	fs.StringSliceVar(&f.groupBy, "group-by", nil,
		"show the values of the `LABEL`s as outermost frames (not with pprof and json)")
	fs.IntVarP(&f.top, "top", "n", 20, "with text: the `N` heaviest stacks, functions and lines")
	_ = cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(profilefmt.Formats(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// check validates the flags, and chooses the format.
func (f *reportFlags) check(cmd *cobra.Command, args []string) error {
	if f.format == "" {
		f.format = formatByName(f.output)
	}
	switch {
	case !slices.Contains(profilefmt.Formats(), f.format):
		return fmt.Errorf("--format must be one of %s, not %q", strings.Join(profilefmt.Formats(), ", "), f.format)
	case f.top < 1:
		return fmt.Errorf("--top must be at least 1, not %d", f.top)
	case len(args) > 1 && slices.Contains(args, "-"):
		return errors.New("standard input cannot be combined with files")
	}
	for _, c := range []struct {
		flag    string
		formats []string // the formats that ignore the flag
	}{
		{"top", []string{profilefmt.JSON, profilefmt.Folded, profilefmt.Pprof, profilefmt.Speedscope, profilefmt.HTML}},
		{"group-by", []string{profilefmt.Pprof, profilefmt.JSON}},
		{"title", []string{profilefmt.Folded, profilefmt.Pprof}},
	} {
		if cmd.Flags().Changed(c.flag) && slices.Contains(c.formats, f.format) {
			return fmt.Errorf("--%s has no effect with format %s", c.flag, f.format)
		}
	}
	return nil
}

// formatByName guesses the format from the name of the output file.
func formatByName(file string) string {
	for _, ending := range []struct{ name, format string }{
		{".html", profilefmt.HTML}, {".htm", profilefmt.HTML}, {".folded", profilefmt.Folded},
		{".pb.gz", profilefmt.Pprof}, {".pprof", profilefmt.Pprof}, {".json", profilefmt.Speedscope},
	} {
		if strings.HasSuffix(file, ending.name) {
			return ending.format
		}
	}
	return profilefmt.Text
}

// run reads the files, and writes the result. It opens the output last, so that an existing output file stays if an input file
// cannot be read.
func (f *reportFlags) run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if f.output == "" {
		if err := console.RefuseBinary(f.format, stdout); err != nil {
			return err
		}
	}
	var (
		p   *pprof.Profile
		o   profilefmt.Options
		out *console.Output
	)
	for _, step := range []func() error{
		func() (err error) { p, o, err = f.read(args, stdin); return err },
		func() (err error) { out, err = console.CreateOutput(f.output, stdout); return err },
	} {
		if err := console.UntilInterrupt(ctx, 0, step); err != nil {
			return err
		}
	}
	defer out.Discard()
	if err := console.UntilInterrupt(ctx, 0, func() error { return profilefmt.Write(out, p, o) }); err != nil {
		return err
	}
	return out.Commit()
}

// read reads the files and adds them up into one profile. It also returns the options for printing this profile.
func (f *reportFlags) read(args []string, stdin io.Reader) (*pprof.Profile, profilefmt.Options, error) {
	o := profilefmt.Options{
		Format: f.format, Title: f.title, SampleType: f.sampleType, Root: f.groupBy, Top: f.top, Strict: true,
		Memory: budget.New(budget.Memory, "memory"), Output: budget.New(budget.Output, "output"),
	}
	if o.Title == "" {
		o.Title = "Profile"
		if args[0] != "-" {
			o.Title = filepath.Base(args[0])
		}
	}
	profiles := make([]*pprof.Profile, len(args))
	for i, name := range args {
		p, err := readProfile(name, stdin, o.Memory, o.Output)
		if err != nil {
			return nil, o, err
		}
		profiles[i] = p
	}
	p := profiles[0]
	if len(profiles) > 1 {
		var err error
		if p, err = profilefmt.Merge(profiles, o.Memory); err != nil {
			return nil, o, fmt.Errorf("cannot add up the profiles: %w", err)
		}
	}
	o.Notes = p.Comments
	return p, o, nil
}

// readProfile reads one file, or standard input if name is "-".
func readProfile(name string, stdin io.Reader, memory, size *budget.Budget) (*pprof.Profile, error) {
	if name == "-" {
		p, err := profilefmt.Read(stdin, memory, size)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return p, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := profilefmt.Read(file, memory, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
