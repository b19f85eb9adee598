package dwarf

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"sort"
)

// lines is the line table of a unit (§6.2): rows by address, and the names of files.
type lines struct {
	rows      []row
	sequences []sequence // sorted by low address
	version   uint16
	dirs      []string
	files     []file
	// dir is the folder in which the compiler ran.
	dir  string
	size int
}

// row is an entry of the line table: the code from addr to the next row's address comes from the source file and the
// line in this row.
type row struct {
	addr uint64
	file uint32
	line uint32
}

// sequence is a piece of code without gaps: the rows with the indexes [first, last).
type sequence struct {
	span
	first, last uint32
}

// file is a source file, in the folder dirs[dir].
type file struct {
	name string
	dir  uint64
}

// lines returns the line table of a unit, or nil if it has none.
func (d *Data) lines(u *unit) (*lines, error) {
	if !u.hasStmt {
		return nil, nil //nolint:nilnil // a unit without lines is no error
	}
	return cachedAs(d.cache, cacheKey{d, cachedLines, u.stmt}, func() (*lines, int, error) {
		t, err := d.readLines(u)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: line table at %#x: %w", d.name, u.stmt, err)
		}
		return t, t.size, nil
	})
}

// line returns the file and line of an address; "" and 0 if they are unknown.
func (d *Data) line(u *unit, addr uint64) (string, int, error) {
	t, err := d.lines(u)
	if t == nil {
		return "", 0, err
	}
	r, ok := t.find(addr)
	if !ok || r.line == 0 {
		return "", 0, err
	}
	return t.path(uint64(r.file)), int(r.line), err
}

// callFile returns the name of the file with the call of an inlined function.
func (d *Data) callFile(u *unit, c *call) (string, error) {
	t, err := d.lines(u)
	if t == nil {
		return "", err
	}
	return t.path(c.file), err
}

// find returns the row for an address. The result is false if there is none.
func (t *lines) find(addr uint64) (row, bool) {
	i := sort.Search(len(t.sequences), func(i int) bool { return t.sequences[i].low > addr }) - 1
	if i < 0 || !t.sequences[i].holds(addr) {
		return row{}, false
	}
	rows := t.rows[t.sequences[i].first:t.sequences[i].last]
	n := sort.Search(len(rows), func(i int) bool { return rows[i].addr > addr })
	if n == 0 {
		return row{}, false
	}
	return rows[n-1], true
}

// path returns the path of a file by its number; "" if the file is unknown.
func (t *lines) path(number uint64) string {
	if t.version < 5 {
		number-- // before version 5 the first file has number 1
	}
	if number >= uint64(len(t.files)) {
		return ""
	}
	f := &t.files[number]
	if f.name == "" {
		return ""
	}
	dir := t.folder(f.dir)
	if path.IsAbs(f.name) {
		dir = ""
	}
	return path.Join(dir, f.name)
}

// folder returns the path of a folder by its number. Before version 5, number 0 is the folder in which the compiler
// ran.
func (t *lines) folder(number uint64) string {
	if t.version < 5 {
		if number == 0 {
			return t.dir
		}
		number--
	}
	if number >= uint64(len(t.dirs)) {
		return t.dir
	}
	dir := t.dirs[number]
	if !path.IsAbs(dir) {
		dir = path.Join(t.dir, dir)
	}
	return dir
}

// add makes a sequence from the rows that begin with index first. end is the end address of the sequence. If the linker
// has removed the code, or if the sequence is invalid, add removes the rows instead.
func (t *lines) add(u *unit, first int, end uint64) {
	rows := t.rows[first:]
	if len(rows) == 0 {
		return
	}
	byAddress := func(a, b row) int { return cmp.Compare(a.addr, b.addr) }
	if !slices.IsSortedFunc(rows, byAddress) {
		slices.SortStableFunc(rows, byAddress)
	}
	s := sequence{span{rows[0].addr, end}, uint32(first), uint32(len(t.rows))}
	if !s.alive(u) {
		t.rows = t.rows[:first]
		return
	}
	t.sequences = append(t.sequences, s)
}

func (t *lines) sort() {
	slices.SortStableFunc(t.sequences, func(a, b sequence) int { return cmp.Compare(a.low, b.low) })
	t.rows, t.sequences = slices.Clip(t.rows), slices.Clip(t.sequences)
	t.size = 16*len(t.rows) + 24*len(t.sequences)
	for i := range t.files {
		t.size += 32 + len(t.files[i].name)
	}
	for _, dir := range t.dirs {
		t.size += 16 + len(dir)
	}
}
