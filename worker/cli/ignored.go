package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pg_stat_backtrace/worker/cli/console"
	"pg_stat_backtrace/worker/naming/debuginfod"
	"pg_stat_backtrace/worker/report/profilefmt"
)

// given are the options and arguments of a call.
type given struct {
	fs   *pflag.FlagSet
	args []string
}

// value returns the value of an option, or its default; "" if the command has no such option.
func (g *given) value(name string) string {
	if f := g.fs.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// set reports whether a switch is on.
func (g *given) set(name string) bool { return g.value(name) == "true" }

// format returns the situation, such as "with --format json", if the chosen format is not in the list of; "" if it is.
func (g *given) format(of ...string) string {
	if format := g.value("format"); !slices.Contains(of, format) {
		return "with --format " + format
	}
	return ""
}

// with returns the situation "with --NAME" if the switch with this name is on; otherwise "".
func (g *given) with(name string) string {
	if g.set(name) {
		return "with --" + name
	}
	return ""
}

// without returns the situation if none of the options in a list is given; otherwise "".
func (g *given) without(names ...string) string {
	if slices.ContainsFunc(names, g.fs.Changed) {
		return ""
	}
	return "without --" + strings.Join(names, " or --")
}

// first returns the first of several situations that is not empty.
func first(situations ...string) string {
	for _, s := range situations {
		if s != "" {
			return s
		}
	}
	return ""
}

// idle has options of a command that have no effect in some situation, such as together with another option.
type idle struct {
	options []string
	// because returns the situation, such as "with --format json"; "" if the options have an effect.
	because func(g *given) string
}

// ignoredOptions returns which options have no effect because of others, by the path of the command. Further combinations are refused
// by the commands themselves. TestEveryOption has an entry for each option of each command.
func ignoredOptions() map[string][]idle {
	text := func(g *given) string { return g.format(console.FormatText) }
	server := func(g *given) bool { return len(g.args) == 0 } // the command memory reads a whole server
	return map[string][]idle{
		"activity": {
			{[]string{"sort"}, func(g *given) string { return g.with("tree") }},
			{[]string{"query-width"}, text},
			{[]string{"wide"}, func(g *given) string { return first(text(g), g.with("tree")) }},
			{[]string{"tree"}, func(g *given) string {
				if len(g.args) > 0 {
					return ""
				}
				return text(g)
			}},
		},
		"capture": {
			{[]string{"format"}, func(g *given) string { return g.with("stats") }},
			{[]string{"interval"}, func(g *given) string {
				if g.value("repeat") != "1" || g.value("warm-up") != "0" {
					return ""
				}
				return "without --repeat"
			}},
		},
		"decode": {{[]string{"debug-dir"}, func(g *given) string { return g.without("exe", "pid") }}},
		"history": {
			{[]string{"limit"}, func(g *given) string { return g.without("by", "compare") }},
			{[]string{"query-width", "wide"}, text},
			{[]string{"own"}, func(g *given) string {
				switch f := g.value("format"); {
				case g.fs.Changed("pid"):
					return "with --pid"
				case (f == console.FormatCSV || f == console.FormatJSON) && g.without("by", "compare") != "":
					return "with --format " + f + ", which has all sessions"
				}
				return ""
			}},
		},
		"incident take": {{[]string{"record-redact"}, func(g *given) string { return noTexts(g) }}},
		"memory": {
			{[]string{"wide"}, func(g *given) string {
				if !server(g) {
					return "with process ids"
				}
				return text(g)
			}},
			{[]string{"tree"}, func(g *given) string {
				if server(g) {
					return "without process ids"
				}
				return text(g)
			}},
			{[]string{"top"}, func(g *given) string {
				if server(g) && !g.set("allocations") {
					return ""
				}
				return first(g.format(console.FormatText), g.with("tree"))
			}},
			{[]string{"sample-type"}, func(g *given) string {
				if g.set("allocations") && g.format(console.FormatText, console.FormatCompressed) == "" {
					return "with --format " + g.value("format")
				}
				return ""
			}},
		},
		"plan": {{[]string{"query-width"}, text}},
		"profile": {
			{[]string{"format"}, func(g *given) string { return g.with("stats") }},
			{[]string{"top"}, func(g *given) string { return first(g.with("stats"), text(g)) }},
			{[]string{"group-by"}, func(g *given) string {
				return first(g.with("stats"), g.format(profilefmt.Text, profilefmt.Folded, profilefmt.Speedscope, profilefmt.HTML))
			}},
		},
		"symbols": {{[]string{"wide"}, func(g *given) string { return g.with("json") }}},
		"top":     topIdle(),
		"trace": {
			{[]string{"top"}, func(g *given) string { return first(g.with("count"), text(g)) }},
			{[]string{"max-stacks", "max-frames"}, func(g *given) string { return g.with("count") }},
		},
		"waits": {
			{[]string{"top"}, func(g *given) string { return first(g.without("stacks"), text(g)) }},
			{[]string{"idle"}, text},
			{[]string{"wide"}, func(g *given) string {
				switch {
				case g.fs.Changed("trace"):
					return "with --trace"
				case g.fs.Changed("stacks"):
					return "with --stacks"
				}
				return text(g)
			}},
		},
		"worker": {
			{[]string{"export-interval", "export-mode"}, func(g *given) string { return g.without("export-pyroscope", "export-otlp") }},
			{[]string{"record-redact"}, noTexts},
			{recordOptions(), func(g *given) string {
				if g.value(console.FlagRecord) == "off" {
					return "with --record off"
				}
				return ""
			}},
		},
	}
}

// noTexts returns the situation if the chosen options record no query texts; otherwise "".
func noTexts(g *given) string {
	if g.value("record-query-text") == "off" {
		return "with --record-query-text off"
	}
	return ""
}

// topIdle returns the options of top that have no effect in a list of servers, or in a printed view.
func topIdle() []idle {
	list := func(g *given) string {
		if urls, err := g.fs.GetStringArray("connect"); err == nil && len(urls) > 1 {
			return "with several --connect"
		}
		return g.with("all")
	}
	printed := func(g *given, view string) string { // a printed page of the screen
		if g.set("batch") && g.value("format") == console.FormatText && g.value("view") != view {
			return "with --batch, except with --view " + view
		}
		return ""
	}
	return []idle{
		{[]string{"view", "by", "side"}, list},
		{[]string{"sort"}, func(g *given) string {
			if list(g) == "" && (g.fs.Changed("pgdata") || g.fs.Changed("connect") || g.fs.Changed("pid") || g.set("batch")) {
				return "without --all"
			}
			return ""
		}},
		{[]string{"width", "height"}, func(g *given) string {
			if g.value("format") == console.FormatText && !g.set("batch") {
				return "without --batch"
			}
			return g.format(console.FormatText)
		}},
		{[]string{"by"}, func(g *given) string { return printed(g, "who") }},
		{[]string{"side"}, func(g *given) string {
			if because := printed(g, "flame"); because != "" || g.value("view") == "flame" {
				return because
			}
			return g.format(console.FormatText)
		}},
		{[]string{"view"}, func(g *given) string {
			if g.fs.Changed("pid") && g.value("view") != "session" {
				return "with --pid"
			}
			return ""
		}},
	}
}

// cacheOptions are the options of debuginfod that have an effect only if a debuginfod server is configured.
func cacheOptions() []string {
	return []string{"debuginfod-cache", "debuginfod-cache-size", "debuginfod-max-size", "debuginfod-min-free"}
}

// refuseIgnored returns an error if an option has no effect because of another one.
func refuseIgnored(cmd *cobra.Command, args []string, env func(string) string) error {
	g := &given{cmd.Flags(), args}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	list := ignoredOptions()[path]
	if path != "worker" { // a worker's unit has the same options with and without $DEBUGINFOD_URLS
		list = append(list, idle{cacheOptions(), func(g *given) string {
			if g.value("core") != "" || path == "memory" && !g.set("allocations") {
				return "" // the command returns another error
			}
			if url := g.value("debuginfod"); url == "[off]" || url == "[]" && env(debuginfod.EnvURLs) == "" {
				return "without a server: give --debuginfod URL, or set " + debuginfod.EnvURLs
			}
			return ""
		}})
	}
	for _, i := range list {
		for _, name := range i.options {
			if !g.fs.Changed(name) {
				continue
			}
			if because := i.because(g); because != "" {
				return console.Usage(fmt.Errorf("--%s has no effect %s", name, because))
			}
		}
	}
	return nil
}
