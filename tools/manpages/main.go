// Command manpages writes the manual pages and shell completions of pg_stat_backtrace from the help of its commands:
//
//	manpages -version 1.2.0 -date 2026-11-26 FOLDER
//
// FOLDER gets man1/*.1 and completions/{bash,zsh,fish}. The same commands make the same bytes.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"pg_stat_backtrace/worker/cli"
)

func main() {
	version := flag.String("version", "", "the program's version, for the footer of each page")
	date := flag.String("date", "", "the date in the footer of each page, such as 2026-11-26")
	flag.Parse()
	if flag.NArg() != 1 || *version == "" || *date == "" {
		fmt.Fprintln(os.Stderr, "usage: manpages -version VERSION -date DATE FOLDER")
		os.Exit(2)
	}
	if err := write(flag.Arg(0), *version, *date); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

// write makes all files below folder.
func write(folder, version, date string) error {
	root := cli.Commands(version)
	root.InitDefaultCompletionCmd()
	files := completions(root)
	for _, cmd := range documented(root) {
		p := page{cmd: cmd, version: version, date: date}
		files[filepath.Join("man1", name(cmd)+".1")] = p.roff
	}
	for path, contents := range files {
		path = filepath.Join(folder, path)
		var b bytes.Buffer
		err := errors.Join(contents(&b), os.MkdirAll(filepath.Dir(path), 0o755))
		if err == nil {
			err = os.WriteFile(path, b.Bytes(), 0o644)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// completions returns the functions that write the completion scripts, by path.
func completions(root *cobra.Command) map[string]func(*bytes.Buffer) error {
	const descriptions = true
	return map[string]func(*bytes.Buffer) error{
		"completions/bash": func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, descriptions) },
		"completions/zsh":  func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"completions/fish": func(b *bytes.Buffer) error { return root.GenFishCompletion(b, descriptions) },
	}
}

// documented returns the command and every command below it that has a page: not the completion command, whose
// scripts are installed, and not help.
func documented(cmd *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		if sub.Hidden || sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		list = append(list, documented(sub)...)
	}
	return list
}
