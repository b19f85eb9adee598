package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"pg_stat_backtrace/unwind/budget"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/report/profilefmt"
	"pg_stat_backtrace/worker/report/render"
)

// coreFlags are the flags of capture that are about core files.
type coreFlags struct {
	file, exe, sysroot string
}

func (c *coreFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&c.file, "core", "",
		"print the stacks of the core `FILE` (also .zst, .gz, .lz4; - is the standard input)")
	fs.StringVar(&c.exe, "exe", "", "with --core: the program's `FILE`, if it is not where the core says")
	fs.StringVar(&c.sysroot, "sysroot", "", "with --core: look for the program and its libraries below `DIR`")
}

// check returns an error if options or arguments do not fit --core.
func (c *coreFlags) check(cmd *cobra.Command, args []string) error {
	if c.file == "" {
		if c.exe != "" || c.sysroot != "" {
			return errors.New("--exe and --sysroot are for --core")
		}
		return nil
	}
	if len(args) > 0 {
		return errors.New("--core and process ids exclude each other")
	}
	for _, name := range []string{
		"repeat", "warm-up", "interval", "timeout", "stats", "threads", "no-context", "nonstop", "stop", "debuginfod",
		"debuginfod-cache", "debuginfod-max-size", "debuginfod-cache-size", "debuginfod-min-free",
	} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for processes, not for --core", name)
		}
	}
	return nil
}

// runCore prints the stacks of a core file. It returns at once after an interrupt, as reading the core from a pipe may block for
// ever.
func (f *captureFlags) runCore(ctx context.Context, stdout, stderr io.Writer) error {
	if err := console.RefuseBinary(f.format, stdout); err != nil {
		return err
	}
	return console.UntilInterrupt(ctx, 0, func() error {
		c, err := capture.ReadCore(f.core.file, capture.CoreOptions{
			Exe: f.core.exe, Sysroot: f.core.sysroot, MaxFrames: f.maxFrames, Goroutines: f.goroutines, Stdin: os.Stdin,
			DebugDirs: f.debugDirs,
		})
		if err != nil {
			return err
		}
		return f.printCore(c, stdout, stderr)
	})
}

// printCore prints the stacks of a core file, and reports refused files on stderr. It returns console.ErrReported if the file of
// --exe does not match the core, or if stacks were left out.
func (f *captureFlags) printCore(c *capture.CoreTrace, stdout, stderr io.Writer) (err error) {
	coloured := console.IsColoured(stdout)
	size := budget.New(budget.Output, "output")
	size.Credit(c.Input)
	messages := console.NewCheckedWriter(size.Writer(stderr))
	stdout, stderr = size.Writer(stdout), messages
	for _, err := range c.Refused {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			console.Tellf(stderr, "%s", line)
		}
	}
	for _, file := range c.Unproved {
		console.Tellf(stderr, "warning: %s is used without verification: the core has nothing of it to compare", file)
	}
	switch f.format {
	case console.FormatJSON:
		err = render.JSON(stdout, c.Trace)
	case console.FormatFolded, console.FormatPprof, console.FormatSpeedscope, console.FormatHTML:
		var counted profilefmt.Traces
		counted.Add(c.Trace, 1)
		err = writeTraces(stdout, &counted, f.format, coreTitle(c))
	case console.FormatCompressed:
		err = f.compressed.Write(stdout, c.Trace)
	case console.FormatBrief, console.FormatShort:
		_, err = fmt.Fprintf(stdout, "%s\n%s\n", render.Heading(coreTitle(c), coloured),
			indented(render.Brief(c.Trace, render.Options{Colour: coloured})))
	default:
		_, err = fmt.Fprintf(stdout, "%s\n%s\n", coreTitle(c), render.Text(c.Trace, render.Options{}))
	}
	if err == nil {
		err = messages.Err()
	}
	if err == nil && (c.WrongExe || c.LeftOut > 0) {
		err = console.ErrReported
	}
	return err
}

// coreTitle is the line above a core's stacks.
func coreTitle(c *capture.CoreTrace) string {
	s := fmt.Sprintf("core of process %d (%s), %s", c.Trace.PID, render.Word(c.Name), c.Arch)
	if c.Signal == 0 {
		return s
	}
	s += fmt.Sprintf(", signal %d", c.Signal)
	if name := unix.SignalName(syscall.Signal(c.Signal)); name != "" {
		s += " (" + name + ")"
	}
	return s
}
