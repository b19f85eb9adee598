package dwarf_test

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/internal/figure"
)

// The oracles are addr2line of binutils and of elfutils. They share no code with this package or with each other.
// LLVM's addr2line decides where they disagree.

// place is one line of a stack: a function and its current source line.
type place struct {
	function, file string
	line           int
}

func (p place) String() string { return fmt.Sprintf("%s %s:%d", p.function, p.file, p.line) }

// chain is an answer for one address, innermost first.
type chain []place

// samePlaces reports whether two chains are equal except for the names of functions.
func (c chain) samePlaces(other chain) bool {
	return slices.EqualFunc(c, other, func(a, b place) bool { return a.file == b.file && a.line == b.line })
}

// The tools.
const (
	binutils = "addr2line"
	elfutils = "eu-addr2line"
	llvm     = "llvm-addr2line"
)

// addr2line runs a tool. It returns nil if the tool is not installed.
func addr2line(t testing.TB, tool, name string, addrs []uint64) []chain {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		t.Logf("%s is not installed: not compared with", tool)
		return nil
	}
	var in bytes.Buffer
	for _, addr := range addrs {
		fmt.Fprintf(&in, "%#x\n", addr)
	}
	cmd := exec.CommandContext(t.Context(), tool, "-f", "-i", "-a", "-e", name)
	cmd.Stdin = &in
	out, _ := cmd.Output() // eu-addr2line fails if one of the addresses is unknown
	all := parseAddr2line(t, out)
	if len(all) != len(addrs) {
		t.Fatalf("%s gave %d answers to %d addresses", tool, len(all), len(addrs))
	}
	return all
}

// parseAddr2line reads the output: the address, then two lines for each place.
func parseAddr2line(t testing.TB, out []byte) []chain {
	t.Helper()
	var all []chain
	s := bufio.NewScanner(bytes.NewReader(out))
	s.Buffer(nil, 1<<20)
	function := ""
	for s.Scan() {
		switch line := s.Text(); {
		case strings.HasPrefix(line, "0x"):
			all = append(all, nil)
			function = ""
		case function == "":
			function = line
		default:
			all[len(all)-1] = append(all[len(all)-1], parsePlace(function, line))
			function = ""
		}
	}
	return all
}

// parsePlace reads "function" and "file:line" in the format of either tool. Line 0 and "??" mean unknown.
func parsePlace(function, at string) place {
	p := place{}
	if function != "??" {
		p.function, _, _ = strings.Cut(function, " inlined at ")
	}
	at, _, _ = strings.Cut(at, " (discriminator")
	fields := strings.Split(at, ":")
	if len(fields) < 2 || fields[0] == "??" {
		return p
	}
	if p.line, _ = strconv.Atoi(fields[1]); p.line > 0 {
		p.file = path.Clean(fields[0])
	}
	return p
}

// subject is something to compare with the oracles.
type subject struct {
	name string
	// machine is set for files that are there, the others are made for this.
	machine bool
	// open returns the files, or an error with the reason why there are none.
	open func() (files, error)
}

// files are the files of a subject.
type files struct {
	// exe contains the code, debug the debugging information (the same file, or the separate one).
	exe, debug string
	// twin is a file with the same code, for oracles that cannot read this one.
	twin string
}

func (s *files) asked() string {
	if s.twin != "" {
		return s.twin
	}
	return s.exe
}

// tally counts the outcomes of a comparison.
type tally struct {
	equal, total int
	classes      []int
	unexplained  int
}

// answers are all answers for the addresses of one file.
type answers struct {
	addrs   []uint64
	ours    []chain
	theirs  map[string][]chain // by tool
	judge   []chain
	symbols elfSymbols
	aranges aranges
	entries entries
}

// tools maps each reference to the other one.
var tools = map[string]string{binutils: elfutils, elfutils: binutils}

// askAll collects all answers for n random addresses.
func askAll(t *testing.T, s *files, n int) *answers {
	t.Helper()
	a := &answers{
		addrs: randomAddresses(t, s.exe, n), theirs: make(map[string][]chain),
		symbols: symbolsOf(t, s.exe), aranges: arangesOf(t, s.debug), entries: entriesOf(t, s),
	}
	a.ours = ours(t, openData(t, s.debug), a.addrs)
	for tool := range tools {
		if said := addr2line(t, tool, s.asked(), a.addrs); said != nil {
			a.theirs[tool] = said
		}
	}
	a.judge = addr2line(t, llvm, s.asked(), a.addrs)
	return a
}

// comparison collects the evidence about address i, compared with a tool.
func (a *answers) comparison(tool string, i int) comparison {
	c := comparison{tool: tool, ours: a.ours[i], want: a.theirs[tool][i]}
	c.symbols, c.nearest = a.symbols.at(a.addrs[i])
	c.arange, c.ranged = a.aranges.at(a.addrs[i])
	c.entry = func() bool { return a.entries.at(a.addrs[i]) }
	if other := a.theirs[tools[tool]]; other != nil {
		c.other = other[i]
	}
	if a.judge != nil {
		c.judge = a.judge[i]
	}
	return c
}

// sum is the summary of several files.
type sum struct {
	addresses, equal, answers, mistakes int
	// shares is how much each of the references says the same.
	shares string
}

// compare compares all answers for the addresses. A difference without a class is an error. A class that excuses a
// mistake is an error, too.
func compare(t *testing.T, name string, s *files, n int) sum {
	t.Helper()
	a := askAll(t, s, n)
	total := sum{addresses: n, shares: fmt.Sprintf("%d addresses", n)}
	for _, tool := range slices.Sorted(maps.Keys(a.theirs)) {
		count := tally{total: len(a.addrs), classes: make([]int, len(classes))}
		for i, addr := range a.addrs {
			c := a.comparison(tool, i)
			if !count.add(&c) && count.unexplained <= 5 {
				t.Errorf("%s at %#x: %v, but %s says %v, the other one %v, LLVM %v (%v)",
					name, addr, c.ours, tool, c.want, c.other, c.judge, c.symbols)
			}
		}
		count.log(t, name, tool)
		total.shares += fmt.Sprintf(", %.2f %% of %s's answers equal, %d explained, %d not",
			100*float64(count.equal)/float64(max(count.total, 1)), tool,
			count.total-count.equal-count.unexplained, count.unexplained)
		total.equal, total.answers = total.equal+count.equal, total.answers+count.total
	}
	total.mistakes = a.makeMistakes(t, 300)
	return total
}

// explained returns the class of a difference: -1 if there is no difference, false if no class explains it.
func (c *comparison) explained() (int, bool) {
	if slices.Equal(c.ours, c.want) || len(c.ours) == 0 && len(c.want) == 1 && c.want[0] == (place{}) {
		return -1, true
	}
	i := slices.IndexFunc(classes, func(k class) bool { return k.is(c) })
	return i, i >= 0
}

// add counts an address; false if the difference cannot be explained.
func (n *tally) add(c *comparison) bool {
	i, ok := c.explained()
	switch {
	case !ok:
		n.unexplained++
	case i < 0:
		n.equal++
	default:
		n.classes[i]++
	}
	return ok
}

func (n *tally) log(t *testing.T, name, tool string) {
	t.Helper()
	t.Logf("%-24s %-13s %6d of %6d equal (%.2f %%), unexplained %d",
		name, tool, n.equal, n.total, 100*float64(n.equal)/float64(max(n.total, 1)), n.unexplained)
	for i, count := range n.classes {
		if count > 0 {
			t.Logf("    %6d %s: %s", count, classes[i].name, classes[i].why)
		}
	}
}

// addresses returns how many addresses of each file of this machine are compared: PGSB_ORACLE_ADDRESSES, or 300. For
// the programs of this test it is a tenth of that, but at least 300.
func addresses(t testing.TB) (machine, made int) {
	t.Helper()
	const few = 300
	s := os.Getenv("PGSB_ORACLE_ADDRESSES")
	if s == "" {
		return few, few
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("PGSB_ORACLE_ADDRESSES: %v", err)
	}
	return n, max(few, n/10)
}

// TestOracle compares with addr2line on files of this machine and on programs that it builds.
func TestOracle(t *testing.T) {
	if _, err := exec.LookPath(binutils); err != nil {
		t.Skip("addr2line is not installed: nothing to compare with")
	}
	machine, made := addresses(t)
	var total sum
	selected := figure.Share(t, 3)
	for i, s := range subjects(t) {
		if !s.machine && !selected(i) {
			continue // each takes a compiler
		}
		t.Run(s.name, func(t *testing.T) {
			if testing.Short() && !s.machine {
				t.Skip("takes compilers: not with -short")
			}
			f, err := s.open()
			if err != nil {
				t.Skip(err)
			}
			n := made
			if s.machine {
				n = machine
			}
			one := compare(t, s.name, &f, n)
			if s.machine {
				figure.Printf(t, "%s", one.shares)
			}
			total.addresses += one.addresses
			total.equal += one.equal
			total.answers += one.answers
			total.mistakes += one.mistakes
		})
	}
	figure.Printf(t, "%d addresses: %d of %d answers of addr2line and eu-addr2line equal (%.2f %%), "+
		"the others explained; %d mistakes made on purpose, all noticed", total.addresses, total.equal, total.answers,
		100*float64(total.equal)/float64(max(total.answers, 1)), total.mistakes)
}

// debugFileOf returns the place where a distribution's package puts the debug file of an image, or "".
func debugFileOf(t testing.TB, exe string) string {
	t.Helper()
	id := openImage(t, exe).BuildID()
	if len(id) < 4 {
		return ""
	}
	name := filepath.Join("/usr/lib/debug/.build-id", id[:2], id[2:]+".debug")
	if _, err := os.Stat(name); err != nil {
		return ""
	}
	return name
}
