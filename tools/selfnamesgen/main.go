// Command selfnamesgen makes a table of package unwind/selfnames from PostgreSQL's source.
//
//	scripts/tool.sh selfnamesgen -o unwind/selfnames/tables/15.table /path/to/postgresql-15.18
//
// A table lists the functions of each source file of the server and of PL/pgSQL: which are static, which report errors,
// which other functions of the file they mention, and which have their address taken. The program reads C in
// PostgreSQL's style, with names of functions and braces in the first column. It marks files that it does not fully
// understand. The same source makes the same bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"pg_stat_backtrace/unwind/selfnames"
)

// trees are the folders whose files are linked into the server or PL/pgSQL.
var trees = []string{"src/backend", "src/common", "src/port", "src/timezone", "src/pl/plpgsql/src"}

// elsewhere are folders of these trees whose files are in separate libraries, or in no server on Linux.
var elsewhere = []string{
	"src/backend/snowball/", "src/backend/jit/llvm/", "src/backend/replication/libpqwalreceiver/",
	"src/backend/replication/pgoutput/", "src/backend/utils/mb/conversion_procs/", "src/backend/port/win32/",
}

func main() {
	out := flag.String("o", "", "write the table to this `file`")
	others := flag.String("confirm", "", "weaken the table where these tables (`files`, separated by spaces) differ")
	flag.Parse()
	if flag.NArg() != 1 || *out == "" {
		fmt.Fprintln(os.Stderr, "usage: selfnamesgen [-confirm TABLES] -o FILE SOURCE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *out, strings.Fields(*others)); err != nil {
		fmt.Fprintln(os.Stderr, "selfnamesgen:", err)
		os.Exit(1)
	}
}

func run(source, out string, others []string) error {
	s, err := readSource(source)
	if err != nil {
		return err
	}
	if err := confirm(s, others); err != nil {
		return err
	}
	packed, err := s.Pack()
	if err != nil {
		return err
	}
	functions, static := 0, 0
	for i := range s.Files {
		functions += len(s.Files[i].Functions)
		for j := range s.Files[i].Functions {
			if s.Files[i].Functions[j].Static {
				static++
			}
		}
	}
	fmt.Fprintf(os.Stdout, "PostgreSQL %s: %d files, %d functions, %d of them static, %d bytes\n",
		s.Version, len(s.Files), functions, static, len(packed))
	return os.WriteFile(out, packed, 0o644)
}

var versionLine = regexp.MustCompile(`PACKAGE_VERSION='(\d+)([^']*)'`)

// readSource reads PostgreSQL's source tree.
func readSource(top string) (*selfnames.Source, error) {
	configure, err := os.ReadFile(filepath.Join(top, "configure"))
	if err != nil {
		return nil, err
	}
	version := versionLine.FindStringSubmatch(string(configure))
	if version == nil {
		return nil, fmt.Errorf("%s/configure: no version", top)
	}
	out := &selfnames.Source{Version: version[1] + version[2]}
	headers := newMacros()
	err = walk(filepath.Join(top, "src/include"), []string{".h"}, func(_, text string) {
		headers.add(clean(text))
	})
	if err != nil {
		return nil, err
	}
	for _, tree := range trees {
		err := walk(filepath.Join(top, tree), []string{".c", ".y", ".l"}, func(file, text string) {
			name, _ := filepath.Rel(top, file)
			for _, folder := range elsewhere {
				if strings.HasPrefix(name, folder) {
					return
				}
			}
			if f := parse(strings.TrimPrefix(name, "src/"), text, headers); len(f.Functions) > 0 {
				out.Files = append(out.Files, f)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	sort.Slice(out.Files, func(i, j int) bool { return out.Files[i].Path < out.Files[j].Path })
	return out, nil
}

// walk calls f with the files of a tree that have one of the endings.
func walk(top string, endings []string, f func(file, text string)) error {
	return filepath.WalkDir(top, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, end := range endings {
			if strings.HasSuffix(file, end) {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				f(file, string(text))
			}
		}
		return nil
	})
}
