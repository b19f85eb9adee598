package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/cli/console"
)

// refuseIgnored returns an error if another option makes an option ineffective. Most commands check that themselves.
func refuseIgnored(cmd *cobra.Command, args []string) error {
	fs := cmd.Flags()
	value := func(name string) string {
		if f := fs.Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	var ignored []string // names of options
	because := ""
	switch cmd.Name() {
	case "capture":
		switch {
		case value("stats") == "true":
			ignored, because = []string{"format"}, "with --stats"
		case value("repeat") == "1" && value("warm-up") == "0":
			ignored, because = []string{"interval"}, "without --repeat"
		}
	case "memory":
		switch {
		case len(args) == 0 || value("allocations") == "true":
		case value("format") != console.FormatText:
			ignored, because = []string{"tree", "top"}, "with --format "+value("format")
		case value("tree") == "true":
			ignored, because = []string{"top"}, "with --tree"
		}
	case "activity":
		if value("tree") == "true" {
			ignored, because = []string{"sort"}, "with --tree"
		}
	case "top":
		if value("format") == console.FormatJSON {
			ignored, because = []string{"width", "height"}, "with --format json"
		}
	}
	for _, name := range ignored {
		if fs.Changed(name) {
			return console.Usage(fmt.Errorf("--%s has no effect %s", name, because))
		}
	}
	return nil
}
