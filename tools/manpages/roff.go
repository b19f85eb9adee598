package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// page is the manual page of one command, in the macros of man(7).
type page struct {
	cmd           *cobra.Command
	version, date string
	b             *bytes.Buffer
}

// name is the name of a command's page: its path, with dashes.
func name(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// roff writes the page.
func (p page) roff(b *bytes.Buffer) error {
	p.b = b
	p.macro("TH", strings.ToUpper(name(p.cmd)), "1", p.date, "pg_stat_backtrace "+p.version, "User Commands")
	p.section("NAME")
	p.text(name(p.cmd) + " - " + lowerFirst(p.cmd.Short))
	p.section("SYNOPSIS")
	p.synopsis()
	p.section("DESCRIPTION")
	p.prose(p.long())
	p.commands()
	p.options("OPTIONS", p.cmd.NonInheritedFlags())
	p.options("OPTIONS OF ALL COMMANDS", p.cmd.InheritedFlags())
	if p.cmd.Example != "" {
		p.section("EXAMPLES")
		p.verbatim(p.cmd.Example)
	}
	p.section("EXIT STATUS")
	status := "0 if the command succeeded, 1 if it failed, 2 if its options or arguments were wrong"
	if p.cmd.Name() == "trace" {
		status += ", 3 if a probe was removed because it cost too much"
	}
	p.text(status + ".")
	p.seeAlso()
	return nil
}

func (p page) long() string {
	if p.cmd.Long != "" {
		return p.cmd.Long
	}
	return p.cmd.Short + "."
}

func (p page) synopsis() {
	line := p.cmd.UseLine()
	words := strings.SplitN(line, " ", strings.Count(p.cmd.CommandPath(), " ")+2)
	path := p.cmd.CommandPath()
	rest := ""
	if len(words) > strings.Count(path, " ")+1 {
		rest = " " + words[len(words)-1]
	}
	if p.cmd.HasAvailableSubCommands() {
		rest = " COMMAND [ARGUMENT]..."
	}
	fmt.Fprintf(p.b, "\\fB%s\\fR%s\n", escape(path), escape(rest))
}

// commands lists the commands below this one.
func (p page) commands() {
	subs := documented(p.cmd)[1:]
	if len(subs) == 0 {
		return
	}
	p.section("COMMANDS")
	for _, sub := range subs {
		if sub.Parent() != p.cmd {
			continue
		}
		p.macro("TP")
		fmt.Fprintf(p.b, "\\fB%s\\fR(1)\n", escape(name(sub)))
		p.text(sub.Short + ".")
	}
}

func (p page) options(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	p.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		operand, usage := pflag.UnquoteUsage(f)
		p.macro("TP")
		if f.Shorthand != "" {
			fmt.Fprintf(p.b, "\\fB\\-%s\\fR, ", f.Shorthand)
		}
		fmt.Fprintf(p.b, "\\fB\\-\\-%s\\fR", escape(f.Name))
		if operand != "" {
			fmt.Fprintf(p.b, " \\fI%s\\fR", escape(operand))
		}
		p.b.WriteByte('\n')
		p.text(usage + defaultOf(f))
	})
}

// defaultOf returns the default value of a flag as the commands' help shows it, or nothing for a zero value.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "false", "[]", "0s":
		return ""
	}
	return " (default " + f.DefValue + ")"
}

func (p page) seeAlso() {
	var names []string
	add := func(cmd *cobra.Command) {
		if cmd != p.cmd {
			names = append(names, "\\fB"+escape(name(cmd))+"\\fR(1)")
		}
	}
	if p.cmd.HasParent() {
		add(p.cmd.Root())
		for _, sub := range documented(p.cmd.Root())[1:] {
			add(sub)
		}
	}
	if len(names) == 0 {
		return
	}
	p.section("SEE ALSO")
	fmt.Fprintln(p.b, strings.Join(names, ",\n"))
}

// prose writes paragraphs. A paragraph whose lines are all indented is printed as it is.
func (p page) prose(text string) {
	for i, paragraph := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if indented(paragraph) {
			p.verbatim(paragraph)
			continue
		}
		if i > 0 {
			p.macro("PP")
		}
		p.text(paragraph)
	}
}

func indented(paragraph string) bool {
	for line := range strings.SplitSeq(paragraph, "\n") {
		if strings.HasPrefix(line, "  ") {
			return true // a list or a table: its lines mean something
		}
	}
	return false
}

func (p page) verbatim(text string) {
	p.macro("PP")
	p.macro("nf")
	p.text(strings.Trim(text, "\n"))
	p.macro("fi")
}

func (p page) section(title string) { p.macro("SH", title) }

// macro writes a line with a macro and its arguments.
func (p page) macro(name string, args ...string) {
	p.b.WriteString("." + name)
	for _, arg := range args {
		p.b.WriteString(` "` + strings.ReplaceAll(escape(arg), `"`, `\(dq`) + `"`)
	}
	p.b.WriteByte('\n')
}

// text writes lines of text, none of which is taken for a macro.
func (p page) text(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		line = escape(strings.TrimRight(line, " \t"))
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		p.b.WriteString(line + "\n")
	}
}

// escape makes the characters that roff interprets ordinary ones.
func escape(s string) string {
	return strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`,
		"µ", `\(mc`, "…", "...").Replace(s)
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
