package dwarf

import (
	"errors"
	"fmt"
)

// lineHeader has the fields of a line table's header that are needed to run its line program (§6.2.4).
type lineHeader struct {
	minLength  uint64
	maxOps     uint64
	lineBase   int64
	lineRange  uint64
	opcodeBase uint8
	// operands is the number of operands of each standard opcode, from 1 on.
	operands []uint8
}

const (
	// maxLineFiles bounds the files and folders of one table.
	maxLineFiles = 1 << 17
	// maxNameBytes limits the total length of the names of one table. Many names may be the same string. nameCost is
	// added for each name.
	maxNameBytes = 32 << 20
	nameCost     = 32
	// maxLineProgram limits the size of one line table in bytes, maxRows the number of its rows.
	maxLineProgram = 64 << 20
	maxRows        = 8 << 20
)

// readLines reads a line table: the header and the names, and the rows by running the line program.
func (d *Data) readLines(u *unit) (*lines, error) {
	t := &lines{}
	from, err := d.source(u)
	if err != nil && !errors.Is(err, ErrNoSupplement) {
		return nil, err
	}
	t.dir = from.dir
	c, err := d.sections.line.cursor(u.stmt, 12)
	if err != nil {
		return nil, err
	}
	length, is64 := c.initialLength()
	if c.bad || length > maxLineProgram || length > d.sections.line.size {
		return nil, fmt.Errorf("%w: length %#x", ErrMalformed, length)
	}
	if err := d.charge(int64(length), "line tables"); err != nil {
		return nil, err
	}
	head := uint64(c.pos)
	if c, err = d.sections.line.cursor(u.stmt, head+length); err != nil {
		return nil, err
	}
	c.take(head)
	// The line table has its own size of offsets and addresses.
	lu := *u
	lu.is64 = is64
	t.version = c.u16()
	if t.version < 2 || t.version > 5 {
		return nil, fmt.Errorf("%w: version %d", ErrMalformed, t.version)
	}
	if t.version >= 5 {
		lu.addrSize = c.u8()
		c.u8() // size of segment selectors
	}
	program := c.sized(is64)
	program += c.offset()
	h := parseLineHeader(&c, t.version)
	if err := d.readNames(&c, t, &lu); err != nil {
		return nil, err
	}
	if c.bad || h.lineRange == 0 || lu.addrSize != 4 && lu.addrSize != 8 {
		return nil, fmt.Errorf("%w: header", ErrMalformed)
	}
	c.seek(program)
	if err := t.run(&c, &h, &lu); err != nil {
		return nil, err
	}
	t.sort()
	return t, nil
}

// parseLineHeader reads the fields from minimum_instruction_length to standard_opcode_lengths.
func parseLineHeader(c *cursor, version uint16) lineHeader {
	h := lineHeader{minLength: uint64(c.u8()), maxOps: 1}
	if version >= 4 {
		h.maxOps = max(uint64(c.u8()), 1)
	}
	c.u8() // default_is_stmt: every row is used
	h.lineBase = int64(int8(c.u8()))
	h.lineRange = uint64(c.u8())
	h.opcodeBase = c.u8()
	h.operands = c.take(uint64(max(h.opcodeBase, 1) - 1))
	return h
}

// readNames reads the folders and files.
func (d *Data) readNames(c *cursor, t *lines, u *unit) error {
	if t.version >= 5 {
		return d.readNames5(c, t, u)
	}
	for !c.bad {
		dir := c.str()
		if dir == "" {
			break
		}
		if t.dirs = append(t.dirs, dir); len(t.dirs) > maxLineFiles {
			return fmt.Errorf("%w: folders", ErrTooLarge)
		}
	}
	for !c.bad {
		name := c.str()
		if name == "" {
			break
		}
		t.files = append(t.files, file{name: name, dir: c.uleb()})
		c.uleb() // time of modification
		c.uleb() // size
		if len(t.files) > maxLineFiles {
			return fmt.Errorf("%w: files", ErrTooLarge)
		}
	}
	return nil
}

// readNames5 reads the folders and files of version 5. A format describes the fields of each.
func (d *Data) readNames5(c *cursor, t *lines, u *unit) error {
	dirs, err := d.readNameTable(c, u)
	if err != nil {
		return err
	}
	for i := range dirs {
		t.dirs = append(t.dirs, dirs[i].name)
	}
	t.files, err = d.readNameTable(c, u)
	return err
}

// Contents of a name table (DW_LNCT_…, §6.2.4.1).
const (
	lnctPath           = 1
	lnctDirectoryIndex = 2
)

// readNameTable reads one table of names.
func (d *Data) readNameTable(c *cursor, u *unit) ([]file, error) {
	formats := make([]attribute, c.u8())
	for i := range formats {
		formats[i] = attribute{name: attr(c.uleb()), form: form(c.uleb())}
	}
	count := c.uleb()
	if count > maxLineFiles || count > 0 && len(formats) == 0 {
		return nil, fmt.Errorf("%w: %d names", ErrTooLarge, count)
	}
	if err := d.charge(int64(count)*int64(len(formats)), "names of files"); err != nil {
		return nil, err
	}
	var names []file
	for total := 0; count > 0; count-- {
		var f file
		for i := range formats {
			v := u.readForm(c, &formats[i])
			if c.bad {
				return nil, fmt.Errorf("%w: names end early", ErrMalformed)
			}
			switch formats[i].name {
			case lnctPath:
				var err error
				f.name, err = d.text(u, v) // if a name is missing, only its own lines have no file
				length := len(f.name)
				if errors.Is(err, errNoEnd) {
					length = maxString // bytes in which the end was searched
				}
				total += length + nameCost
				if err := d.charge(headerCost+int64(length/readCost), "names of files"); err != nil {
					return nil, err
				}
			case lnctDirectoryIndex:
				f.dir = v.u
			default: // time, size, checksum
			}
		}
		if total > maxNameBytes {
			return nil, fmt.Errorf("%w: names", ErrTooLarge)
		}
		names = append(names, f)
	}
	return names, nil
}
