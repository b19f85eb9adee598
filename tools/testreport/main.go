// Command testreport makes the output of `go test -json`, read from standard input, readable. It prints a line for
// each package as it ends, the figures of tests (internal/figure), the output of failed tests, the reasons for
// skipped tests, and at the end the number of tests. It exits with status 1 if a test failed, a package did not
// build, or no test ran.
//
// With an argument, it also appends a short form of the failures to the file of that name: the beginnings of the
// messages of failed tests, and the reasons of packages that ended without a failed test. A long run, whose output
// may be cut, can print this file at its end.
//
// With -again FILE, it writes the failed tests to FILE, a line with package and test each. FILE is empty if a package
// ended before all its tests had run, as by a panic, or did not build.
//
// With -times FILE, it writes how long each test took to FILE: a line with seconds, package and test each. These seconds
// include the time in which a test waits.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"pg_stat_backtrace/internal/figure"
)

// event is one line of the input; see `go doc test2json`.
type event struct {
	Action  string  `json:"Action"`
	Package string  `json:"Package"`
	Test    string  `json:"Test"`
	Output  string  `json:"Output"`
	Elapsed float64 `json:"Elapsed"` // seconds
	Key     string  `json:"Key"`     // of an attribute of a test
	Value   string  `json:"Value"`
}

// The actions that end a test or a package.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// key names a test, or with an empty test a package.
type key struct{ pkg, test string }

// report collects the contents of the events.
type report struct {
	out                     io.Writer
	output                  map[key][]string
	passed, failed, skipped int
	broken                  bool            // a package failed
	ended                   bool            // a package ended before all its tests had run, or did not build
	again                   []key           // the failed tests, without subtests
	times                   strings.Builder // a line for each test, without subtests
	told                    map[string]bool // the packages with a test that failed
	failures                strings.Builder
}

func main() {
	again := flag.String("again", "", "write the failed tests to `FILE`")
	times := flag.String("times", "", "write how long each test took to `FILE`")
	flag.Parse()
	r := newReport(os.Stdout)
	err := r.read(os.Stdin)
	if err == nil && flag.NArg() > 0 {
		err = r.writeFailures(flag.Arg(0))
	}
	if err == nil && *again != "" {
		err = r.writeAgain(*again)
	}
	if err == nil && *times != "" {
		err = os.WriteFile(*times, []byte(r.times.String()), 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	fmt.Fprintf(r.out, "%d tests passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if r.broken || r.failed > 0 || r.passed == 0 {
		os.Exit(1)
	}
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: make(map[key][]string), told: make(map[string]bool)}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// line processes one line. It copies lines that are not events (messages of the go command).
func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		_, _ = r.out.Write(line)
		return
	}
	r.event(e)
}

func (r *report) event(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output":
		r.output[k] = append(r.output[k], e.Output)
		return
	case "attr":
		if e.Key == figure.Key {
			fmt.Fprintf(r.out, "      %s: %s\n", e.Test, e.Value)
		}
		return
	case "build-output":
		_, _ = io.WriteString(r.out, e.Output)
		r.failures.WriteString(e.Output)
		return
	case passed, failed, skipped:
		r.end(k, e)
		delete(r.output, k)
	}
}

// end reports the end of a test or a package.
func (r *report) end(k key, e event) {
	if k.test != "" && !strings.Contains(k.test, "/") && e.Action != skipped {
		fmt.Fprintf(&r.times, "%.2f %s %s\n", e.Elapsed, k.pkg, k.test)
	}
	switch {
	case k.test == "" && e.Action == failed:
		r.packageFailed(k, e)
	case k.test == "" && e.Action == passed:
		fmt.Fprintf(r.out, "ok    %-44s %6.1f s\n", k.pkg, e.Elapsed)
	case k.test == "": // no test files
	case e.Action == passed:
		r.passed++
	case e.Action == failed:
		r.failed++
		r.told[k.pkg] = true
		if !strings.Contains(k.test, "/") {
			r.again = append(r.again, k)
		}
		_, _ = io.WriteString(r.out, r.text(k))
		fmt.Fprintf(&r.failures, "%s %s\n%s", k.pkg, k.test, beginnings(r.output[k]))
	default:
		r.skipped++
		fmt.Fprintf(r.out, "skip  %s %s: %s\n", k.pkg, k.test, reason(r.output[k]))
	}
}

// packageFailed reports why a package failed. Either tests failed, which are already reported, or the program ended
// during a test, for example by a panic or because it used too much memory. Then the output of the unfinished tests
// may contain the reason.
func (r *report) packageFailed(k key, e event) {
	r.broken = true
	fmt.Fprintf(r.out, "FAIL  %-44s %6.1f s\n%s", k.pkg, e.Elapsed, r.text(k))
	// After its last test a program prints a line FAIL. Without it, a panic or a limit of time has left out tests.
	if !r.told[k.pkg] || !slices.Contains(r.output[k], "FAIL\n") {
		r.ended = true
	}
	if !r.told[k.pkg] {
		fmt.Fprintf(&r.failures, "%s\n%s", k.pkg, beginnings(r.output[k]))
	}
	byName := func(a, b key) int { return cmp.Compare(a.test, b.test) }
	for _, open := range slices.SortedFunc(maps.Keys(r.output), byName) {
		if open.pkg != k.pkg || open.test == "" {
			continue
		}
		r.ended = true
		fmt.Fprintf(r.out, "%s had not ended\n%s", open.test, r.text(open))
		fmt.Fprintf(&r.failures, "%s %s had not ended\n%s", open.pkg, open.test, beginnings(r.output[open]))
		delete(r.output, open)
	}
}

// text is the output of a test without the lines that only report its start.
func (r *report) text(k key) string {
	var b strings.Builder
	for _, line := range r.output[k] {
		if !strings.HasPrefix(line, "=== ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// message matches the beginning of the first line of a test's message.
var message = regexp.MustCompile(`^\s*\w+\.go:\d+: `)

// beginnings are the first lines of each message of a test, because some messages, such as a server's log, are very
// long.
func beginnings(output []string) string {
	const most = 6 // lines of a message
	var b strings.Builder
	lines := 0
	for _, line := range output {
		if strings.HasPrefix(line, "=== ") || strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			continue
		}
		if message.MatchString(line) {
			lines = 0
		}
		if lines++; lines <= most {
			b.WriteString(line)
		} else if lines == most+1 {
			b.WriteString("        ...\n")
		}
	}
	return b.String()
}

// writeFailures appends the messages of failed tests to a file.
func (r *report) writeFailures(name string) error {
	if r.failures.Len() == 0 {
		return nil
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(r.failures.String())
	return errors.Join(err, file.Close())
}

// writeAgain writes the tests to be run again.
func (r *report) writeAgain(name string) error {
	var b strings.Builder
	if !r.ended {
		for _, k := range r.again {
			fmt.Fprintln(&b, k.pkg, k.test)
		}
	}
	return os.WriteFile(name, []byte(b.String()), 0o600)
}

// reason is the message of a skipped test: its output without the framework's lines.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}
