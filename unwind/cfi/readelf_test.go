package cfi

import (
	"bufio"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pg_stat_backtrace/unwind/arch"
)

// place is where an FDE is.
type place struct {
	debugFrame bool
	off        uint64
}

func (p place) String() string {
	if p.debugFrame {
		return fmt.Sprintf(".debug_frame+%#x", p.off)
	}
	return fmt.Sprintf(".eh_frame+%#x", p.off)
}

// readelfFDE is an FDE as readelf --debug-dump=frames-interp prints it.
type readelfFDE struct {
	place

	start, end uint64
	columns    []int // DWARF columns of the cells
	rows       []readelfRow
}

type readelfRow struct {
	addr  uint64
	cfa   string
	cells []string
}

var (
	readelfSection = regexp.MustCompile(`^Contents of the (\S+) section`)
	readelfCIE     = regexp.MustCompile(`^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE .* ra=(\d+)`)
)

// readelfParser reads readelf's output line by line.
type readelfParser struct {
	t       *testing.T
	section bool // .debug_frame
	known   bool // a section that is compared
	cies    map[place]readelfFDE
	now     readelfFDE
	isFDE   bool
	ra      map[place]int
	nowRA   int
	yield   func(readelfFDE) bool
	stopped bool
}

// readelfFDEs yields the FDEs that readelf prints for a file.
func readelfFDEs(t *testing.T, path string) func(func(readelfFDE) bool) {
	return func(yield func(readelfFDE) bool) {
		cmd := exec.Command("readelf", "--wide", "--debug-dump=frames-interp", "--debug-dump=no-follow-links", path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p := readelfParser{t: t, cies: map[place]readelfFDE{}, ra: map[place]int{}, yield: yield}
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.line(lines.Text())
		}
		p.flush()
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("readelf %s: %v", path, err)
		}
	}
}

func (p *readelfParser) line(s string) {
	if s == "" {
		return
	}
	if strings.HasPrefix(s, "Contents of") {
		m := readelfSection.FindStringSubmatch(s)
		p.flush()
		p.section = m[1] == ".debug_frame" || m[1] == ".zdebug_frame"
		p.known = p.section || m[1] == ".eh_frame"
		return
	}
	switch {
	case !p.known:
	case strings.HasPrefix(s, "   LOC"):
		p.header(strings.Fields(s)[2:])
	case strings.Contains(s, " FDE cie="):
		p.fde(s)
	case strings.Contains(s, " CIE "):
		p.cie(s)
	case strings.Contains(s, "ZERO terminator"):
		p.flush()
	default:
		p.row(strings.Fields(s))
	}
}

func (p *readelfParser) hex(s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		p.t.Fatalf("readelf: %q: %v", s, err)
	}
	return v
}

func (p *readelfParser) cie(s string) {
	p.flush()
	m := readelfCIE.FindStringSubmatch(s)
	if m == nil {
		p.t.Fatalf("readelf: unknown CIE line %q", s)
	}
	p.isFDE = false
	p.now = readelfFDE{place: place{p.section, p.hex(m[1])}}
	p.nowRA, _ = strconv.Atoi(m[2])
	p.ra[p.now.place] = p.nowRA
}

func (p *readelfParser) fde(s string) {
	p.flush()
	f := strings.Fields(s) // offset, length, CIE pointer, FDE, cie=…, pc=start..end
	start, end, ok := strings.Cut(strings.TrimPrefix(f[len(f)-1], "pc="), "..")
	if len(f) != 6 || !ok {
		p.t.Fatalf("readelf: unknown FDE line %q", s)
	}
	cie := place{p.section, p.hex(strings.TrimPrefix(f[4], "cie="))}
	p.isFDE = true
	p.now = readelfFDE{place: place{p.section, p.hex(f[0])}, start: p.hex(start), end: p.hex(end)}
	p.nowRA = p.ra[cie]
	if initial := p.cies[cie]; len(initial.rows) > 0 { // for FDEs without instructions
		row := initial.rows[len(initial.rows)-1]
		row.addr = p.now.start
		p.now.columns, p.now.rows = initial.columns, []readelfRow{row}
	}
}

// header reads the names of an entry's columns.
func (p *readelfParser) header(names []string) {
	p.now.columns, p.now.rows = nil, nil
	for _, name := range names {
		column := readelfColumn(name)
		if name == "ra" {
			column = p.nowRA
		}
		if column < 0 {
			p.t.Fatalf("readelf: unknown register %q", name)
		}
		p.now.columns = append(p.now.columns, column)
	}
}

func (p *readelfParser) row(fields []string) {
	fields = joinRegisters(fields)
	if len(fields) != 2+len(p.now.columns) {
		p.t.Fatalf("readelf: row %q does not fit columns %v", fields, p.now.columns)
	}
	row := readelfRow{addr: p.hex(fields[0]), cfa: fields[1], cells: fields[2:]}
	if n := len(p.now.rows); n > 0 && p.now.rows[n-1].addr == row.addr {
		p.now.rows[n-1] = row
		return
	}
	p.now.rows = append(p.now.rows, row)
}

// joinRegisters makes one field of a register rule, "r8 (r8)".
func joinRegisters(fields []string) []string {
	joined := fields[:0]
	for _, field := range fields {
		if strings.HasPrefix(field, "(") && len(joined) > 0 {
			joined[len(joined)-1] += " " + field
			continue
		}
		joined = append(joined, field)
	}
	return joined
}

// flush hands on the entry that has been read.
func (p *readelfParser) flush() {
	switch {
	case p.isFDE && !p.stopped:
		p.stopped = !p.yield(p.now)
	case !p.isFDE && p.now.rows != nil:
		p.cies[p.now.place] = p.now
	}
	p.now, p.isFDE = readelfFDE{}, false
}

// readelfNames are readelf's names of the x86-64 columns: the names in the psABI's figure 3.36 that occur.
var readelfNames = func() []string {
	names := slices.Clone(arch.AMD64.RegisterNames)
	for i := len(names); i < maxColumns; i++ {
		names = append(names, fmt.Sprintf("xmm%d", i-len(arch.AMD64.RegisterNames)))
	}
	return names
}()

func readelfName(column int) string {
	return readelfNames[column]
}

func readelfColumn(name string) int {
	return slices.Index(readelfNames, name)
}

// readelfRule prints a rule as readelf does.
func readelfRule(row *Row, rule Rule, cfa bool) string {
	signed := func(prefix string, offset int64) string {
		if offset < 0 {
			return prefix + strconv.FormatInt(offset, 10)
		}
		return prefix + "+" + strconv.FormatInt(offset, 10)
	}
	switch rule.Kind {
	case RuleSameValue:
		return "s"
	case RuleOffset:
		return signed("c", rule.Offset)
	case RuleValOffset:
		return signed("v", rule.Offset)
	case RuleRegister:
		if cfa {
			return signed(readelfName(int(rule.Register)), rule.Offset)
		}
		return fmt.Sprintf("r%d (%s)", rule.Register, readelfName(int(rule.Register)))
	case RuleExpression, RuleValExpression:
		if len(row.Expression(rule)) == 0 {
			return "empty expression"
		}
		if rule.Kind == RuleExpression {
			return "exp"
		}
		return "vexp"
	case RuleUnspecified, RuleUndefined:
	}
	return "u"
}
