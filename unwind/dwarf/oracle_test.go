package dwarf_test

import (
	"bufio"
	"bytes"
	"fmt"
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

// The oracles are addr2line of binutils and of elfutils. They share no code with this package, nor with each other.

// place is one line of a stack: a function and where it has come to.
type place struct {
	function, file string
	line           int
}

func (p place) String() string { return fmt.Sprintf("%s %s:%d", p.function, p.file, p.line) }

// chain is what is said of one address, innermost first.
type chain []place

// samePlaces reports whether two chains agree in all but the names of functions.
func (c chain) samePlaces(other chain) bool {
	return slices.EqualFunc(c, other, func(a, b place) bool { return a.file == b.file && a.line == b.line })
}

// The tools.
const (
	binutils = "addr2line"
	elfutils = "eu-addr2line"
)

// addr2line asks a tool. It gives nil if the tool is not installed.
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
	out, _ := cmd.Output() // eu-addr2line fails if it knows nothing of one of the addresses
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

// parsePlace reads "function" and "file:line", as either tool writes them. Line 0 and "??" mean that it is not known.
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

// subject is a file to compare with the oracles.
type subject struct {
	name string
	// exe has the code, debug the debugging information (the same file, or the separate one).
	exe, debug string
	// twin is a file with the same code that the oracles are asked about, where they cannot read this one.
	twin string
}

func (s *subject) asked() string {
	if s.twin != "" {
		return s.twin
	}
	return s.exe
}

// A class of differences, with who is right. All differences must be of a known class.
type class struct {
	name, why string
	is        func(c *comparison) bool
}

// comparison is one address at which the answers differ.
type comparison struct {
	tool              string
	ours, want, other chain
	// symbol is the ELF symbol at the address.
	symbol string
}

var classes = []class{
	{
		"no information, symbol only",
		"the reference found no debugging information there and gives the nearest ELF symbol, which covers nothing",
		func(c *comparison) bool { return len(c.ours) == 0 && len(c.want) == 1 && c.want[0].file == "" },
	},
	{
		"line of the code before",
		"no unit covers the address; elfutils gives the last line of the unit before, though its line table has ended",
		func(c *comparison) bool {
			return c.tool == elfutils && len(c.ours) == 0 && len(c.want) == 1 && unknown(c.other)
		},
	},
	{
		"clone without a name",
		"DWARF has no name for a part that the compiler split off; binutils gives the ELF symbol. Here the ELF symbol " +
			"is put in by the user of this package",
		func(c *comparison) bool {
			return c.ours.samePlaces(c.want) && slices.ContainsFunc(c.ours, func(p place) bool { return p.function == "" })
		},
	},
	{
		"name without linkage name",
		"binutils gives the ELF symbol for the innermost or outermost name where a C++ function has no linkage name, " +
			"also for an inlined one, where that is wrong",
		func(c *comparison) bool {
			return c.tool == binutils && c.ours.samePlaces(c.want) && replacedBySymbol(c.ours, c.want, c.symbol)
		},
	},
	{
		"primary file of DWARF 5",
		"binutils 2.40 confuses the first two files of a DWARF 5 line table; elfutils agrees with us",
		func(c *comparison) bool {
			return c.tool == binutils && sameNumbers(c.ours, c.want) &&
				len(c.ours) > 0 && len(c.other) > 0 && c.ours[0].file == c.other[0].file
		},
	},
	{
		"padding between functions",
		"the line table goes on in the padding behind a function, which belongs to no function; the references " +
			"name the function before, or what they found for the address asked before",
		func(c *comparison) bool {
			if len(c.ours) == 0 {
				return len(c.want) == 1 && c.symbol == "" // outside the unit's ranges, too
			}
			return len(c.ours) == 1 && c.ours[0].function == "" && len(c.want) > 0 &&
				c.want[0].file == c.ours[0].file && c.want[0].line == c.ours[0].line
		},
	},
	{
		"unit without .debug_aranges",
		"elfutils 0.188 finds units by .debug_aranges alone: for others it has the ELF symbol and the line, and no " +
			"inlined calls",
		func(c *comparison) bool {
			return c.tool == elfutils && len(c.want) == 1 && len(c.ours) > 0 && (c.want[0].file == "" ||
				c.want[0].file == c.ours[0].file && c.want[0].line == c.ours[0].line)
		},
	},
	{
		"references differ",
		"inlined calls overlap, or elfutils goes on in another function: the references contradict each other, and the " +
			"other one agrees with us",
		func(c *comparison) bool { return c.other != nil && equivalent(c.ours, c.other, c.symbol) },
	},
}

// unknown reports whether a reference knows no line, or was not asked.
func unknown(c chain) bool { return len(c) == 0 || len(c) == 1 && c[0].file == "" }

// sameNumbers reports whether the chains agree in the numbers of lines.
func sameNumbers(a, b chain) bool {
	return slices.EqualFunc(a, b, func(a, b place) bool { return a.line == b.line })
}

// equivalent compares chains; the ELF symbol is as good as a name.
func equivalent(ours, other chain, symbol string) bool {
	return ours.samePlaces(other) && replacedBySymbol(ours, other, symbol)
}

// replacedBySymbol reports whether the names are equal but for some that are the ELF symbol instead.
func replacedBySymbol(ours, want chain, symbol string) bool {
	return slices.EqualFunc(ours, want, func(a, b place) bool { return a.function == b.function || b.function == symbol })
}

// tally counts the outcomes of a comparison.
type tally struct {
	equal, total int
	classes      []int
	unexplained  int
}

// compare asks all about the addresses. A difference that belongs to no class is an error.
func compare(t *testing.T, s *subject, n int) {
	t.Helper()
	addrs := randomAddresses(t, s.exe, n)
	got := ours(t, openData(t, s.debug), addrs)
	answers := make(map[string][]chain)
	for _, tool := range []string{binutils, elfutils} {
		answers[tool] = addr2line(t, tool, s.asked(), addrs)
	}
	symbols := symbolsOf(t, s.exe)
	for tool, want := range answers {
		if want == nil {
			continue
		}
		other := answers[map[string]string{binutils: elfutils, elfutils: binutils}[tool]]
		count := tally{total: len(addrs), classes: make([]int, len(classes))}
		for i, addr := range addrs {
			c := comparison{tool: tool, ours: got[i], want: want[i], symbol: symbols.at(addr)}
			if other != nil {
				c.other = other[i]
			}
			if !count.add(&c) && count.unexplained <= 5 {
				t.Errorf("%s at %#x: %v, but %s says %v, and the other one %v", s.name, addr, c.ours, tool, c.want, c.other)
			}
		}
		count.log(t, s.name, tool)
	}
}

// add counts an address; false if the difference cannot be explained.
func (n *tally) add(c *comparison) bool {
	if slices.Equal(c.ours, c.want) || len(c.ours) == 0 && len(c.want) == 1 && c.want[0] == (place{}) {
		n.equal++
		return true
	}
	for i := range classes {
		if classes[i].is(c) {
			n.classes[i]++
			return true
		}
	}
	n.unexplained++
	return false
}

func (n *tally) log(t *testing.T, name, tool string) {
	t.Helper()
	figure.Printf(t, "%-24s %-13s %6d of %6d equal (%.2f %%), unexplained %d",
		name, tool, n.equal, n.total, 100*float64(n.equal)/float64(max(n.total, 1)), n.unexplained)
	for i, count := range n.classes {
		if count > 0 {
			t.Logf("    %6d %s: %s", count, classes[i].name, classes[i].why)
		}
	}
}

// addresses is how many are asked about in each file: PGSB_ORACLE_ADDRESSES, else 300.
func addresses(t testing.TB) int {
	t.Helper()
	if s := os.Getenv("PGSB_ORACLE_ADDRESSES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("PGSB_ORACLE_ADDRESSES: %v", err)
		}
		return n
	}
	return 300
}

// TestOracle compares with addr2line on files of this machine and on programs that it builds.
func TestOracle(t *testing.T) {
	if _, err := exec.LookPath(binutils); err != nil {
		t.Skip("addr2line is not installed: nothing to compare with")
	}
	for _, s := range subjects(t) {
		t.Run(s.name, func(t *testing.T) { compare(t, &s, addresses(t)) })
	}
}

// debugFileOf is where a distribution's package puts the debug file of an image, "" if there is none.
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
