package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sharedOptions are the beginnings of the names of options that several commands have. The page explains them once.
var sharedOptions = []string{"debug-dir", "debuginfod"}

// optionsPage writes doc/options.md: every command with its options, from the help texts.
func optionsPage(root *cobra.Command) []byte {
	var b bytes.Buffer
	b.WriteString("<!-- Made by `make options` from the commands' help. Do not edit. -->\n\n# All options\n\n" +
		"The options of each command, as in `--help` and in the manual pages. " +
		"[reference-cli.md](reference-cli.md) explains the\ncommands with examples.\n\n" +
		"Exit status of every command: 0 if it succeeded, 1 if it failed, 2 if its options or arguments were wrong.\n" +
		"`trace` has status 3 if it removed a probe that cost too much: the figures are then of a part of the time. An\n" +
		"interrupt ends `profile`, `waits`, `trace` and `memory --allocations` early, with the results until then and\n" +
		"status 0. It also ends `capture --repeat`, with the results until then and status 1. A second interrupt ends a\n" +
		"command at once. A duration is a number with a unit, such as `500ms`, `30s`, `5m` or `1h`. Every command has\n" +
		"`-h`, `--help`.\n")
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, cmd := range documented(root) {
		if cmd == root {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n\n    %s\n", strings.TrimPrefix(cmd.CommandPath(), root.Name()+" "), cmd.Short, strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		own := pflag.NewFlagSet("", pflag.ContinueOnError)
		var elsewhere []string
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			switch {
			case f.Hidden || f.Name == "help":
			case isShared(f.Name):
				elsewhere = append(elsewhere, "`--"+f.Name+"`")
				if shared.Lookup(f.Name) == nil {
					shared.AddFlag(f)
				}
			default:
				own.AddFlag(f)
			}
		})
		if own.HasFlags() {
			optionsTable(&b, own)
		}
		if len(elsewhere) > 0 {
			fmt.Fprintf(&b, "\nAlso %s: see [the last table](#debug-files).\n", strings.Join(elsewhere, ", "))
		}
	}
	b.WriteString("\n## Debug files\n\nOptions of the commands that read names and source lines from separate files:\n")
	optionsTable(&b, shared)
	return b.Bytes()
}

func isShared(name string) bool {
	for _, beginning := range sharedOptions {
		if strings.HasPrefix(name, beginning) {
			return true
		}
	}
	return false
}

func optionsTable(b *bytes.Buffer, flags *pflag.FlagSet) {
	b.WriteString("\n| option | meaning | default |\n| --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		operand, usage := pflag.UnquoteUsage(f)
		option := "--" + f.Name
		if f.Shorthand != "" {
			option = "-" + f.Shorthand + "`, `" + option
		}
		if operand != "" {
			option += " " + operand
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", option, strings.ReplaceAll(usage, "|", `\|`), shownDefault(f))
	})
}

// shownDefault returns a default value in Markdown, or nothing for a zero value.
func shownDefault(f *pflag.Flag) string {
	text := defaultOf(f)
	if text == "" {
		return ""
	}
	return "`" + strings.Trim(f.DefValue, "[]") + "`"
}
